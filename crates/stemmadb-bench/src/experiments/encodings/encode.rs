//! Record encodings of the study, all lossless, and one more that stores frequently updated fields separately.

use crate::Result;
use crate::workload::Account;

/// How a record is stored in an ordered key-value map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Strategy {
    /// Length-prefixed strings, then the fixed-size fields.
    Binary,
    /// Each field preceded by its name.
    Names,
    Json,
    /// Field numbers and varints of the nonzero fields: Go's `gob`, but with the type description stored once.
    Gob,
    /// A key-value pair per field.
    MultiKv,
    /// As `Binary`, with the frequently updated fields (balance, login count, update time) in a separate pair.
    HotFields,
}

/// Field names in storage order. Strings come first, so that fixed-size fields have fixed offsets from the end.
pub(super) const NAMES: [&str; 15] = [
    "username",
    "email",
    "first_name",
    "last_name",
    "description",
    "id",
    "age",
    "height",
    "weight",
    "balance",
    "is_active",
    "created_at",
    "updated_at",
    "login_count",
    "score",
];
const BALANCE: usize = 9;
/// Total size of the fixed-size fields, and the balance's offset from the end.
const FIXED_BYTES: usize = 57;
const BALANCE_FROM_END: usize = 37;

impl Strategy {
    pub(super) const ALL: [Strategy; 6] =
        [Strategy::Binary, Strategy::Names, Strategy::Json, Strategy::Gob, Strategy::MultiKv, Strategy::HotFields];

    pub(super) fn name(self) -> &'static str {
        match self {
            Strategy::Binary => "lmdb-binary",
            Strategy::Names => "lmdb-names",
            Strategy::Json => "lmdb-json",
            Strategy::Gob => "lmdb-gob-like",
            Strategy::MultiKv => "lmdb-multikv",
            Strategy::HotFields => "lmdb-hot-fields",
        }
    }
}

fn damaged_record() -> crate::Failure {
    "a record is damaged".into()
}

fn strings(account: &Account) -> [&String; 5] {
    [&account.username, &account.email, &account.first_name, &account.last_name, &account.description]
}

/// Returns the bytes of one field, without its name.
pub(super) fn field(account: &Account, at: usize) -> Vec<u8> {
    match at {
        0..5 => strings(account)[at].as_bytes().to_vec(),
        5 => account.id.to_le_bytes().to_vec(),
        6 => account.age.to_le_bytes().to_vec(),
        7 => account.height.to_le_bytes().to_vec(),
        8 => account.weight.to_le_bytes().to_vec(),
        BALANCE => account.balance.to_le_bytes().to_vec(),
        10 => vec![account.is_active.into()],
        11 => account.created_at.to_le_bytes().to_vec(),
        12 => account.updated_at.to_le_bytes().to_vec(),
        13 => account.login_count.to_le_bytes().to_vec(),
        _ => account.score.to_le_bytes().to_vec(),
    }
}

pub(super) fn set_field(account: &mut Account, at: usize, bytes: &[u8]) -> Result<()> {
    fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N]> {
        bytes.try_into().map_err(|_| damaged_record())
    }
    let text = || String::from_utf8(bytes.to_vec()).map_err(|_| damaged_record());
    match at {
        0 => account.username = text()?,
        1 => account.email = text()?,
        2 => account.first_name = text()?,
        3 => account.last_name = text()?,
        4 => account.description = text()?,
        5 => account.id = i64::from_le_bytes(array(bytes)?),
        6 => account.age = i32::from_le_bytes(array(bytes)?),
        7 => account.height = f32::from_le_bytes(array(bytes)?),
        8 => account.weight = f32::from_le_bytes(array(bytes)?),
        BALANCE => account.balance = f64::from_le_bytes(array(bytes)?),
        10 => account.is_active = array::<1>(bytes)? == [1],
        11 => account.created_at = i64::from_le_bytes(array(bytes)?),
        12 => account.updated_at = i64::from_le_bytes(array(bytes)?),
        13 => account.login_count = i32::from_le_bytes(array(bytes)?),
        _ => account.score = f64::from_le_bytes(array(bytes)?),
    }
    Ok(())
}

/// Splits `count` bytes off the front.
fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Result<&'b [u8]> {
    let (front, rest) = bytes.split_at_checked(count).ok_or_else(damaged_record)?;
    *bytes = rest;
    Ok(front)
}

fn take_u32(bytes: &mut &[u8]) -> Result<usize> {
    Ok(u32::from_le_bytes(take(bytes, 4)?.try_into().map_err(|_| damaged_record())?) as usize)
}

/// Returns the size of a fixed-size field.
fn fixed_length(at: usize) -> usize {
    match at {
        10 => 1,
        6..=8 | 13 => 4,
        _ => 8,
    }
}

/// Encodes as `Binary`, which is also the exchange and hashing format.
pub(super) fn to_binary(account: &Account, out: &mut Vec<u8>) {
    for text in strings(account) {
        out.extend_from_slice(&(text.len() as u32).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    (5..NAMES.len()).for_each(|at| out.extend_from_slice(&field(account, at)));
}

pub(super) fn from_binary(mut bytes: &[u8]) -> Result<Account> {
    let mut account = Account::default();
    for at in 0..NAMES.len() {
        let length = if at < 5 { take_u32(&mut bytes)? } else { fixed_length(at) };
        set_field(&mut account, at, take(&mut bytes, length)?)?;
    }
    if bytes.is_empty() { Ok(account) } else { Err(damaged_record()) }
}

/// Decodes the balance alone from a `Binary` record.
pub(super) fn balance_of_binary(bytes: &[u8]) -> Result<f64> {
    if bytes.len() < FIXED_BYTES {
        return Err(damaged_record());
    }
    balance(&bytes[bytes.len() - BALANCE_FROM_END..][..8])
}

pub(super) fn balance(bytes: &[u8]) -> Result<f64> {
    Ok(f64::from_le_bytes(bytes.try_into().map_err(|_| damaged_record())?))
}

pub(super) fn to_names(account: &Account, out: &mut Vec<u8>) {
    for (at, name) in NAMES.iter().enumerate() {
        let field = field(account, at);
        out.push(name.len() as u8);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&(field.len() as u16).to_le_bytes());
        out.extend_from_slice(&field);
    }
}

/// Returns the next name and field; `None` at the end.
fn next_named<'b>(bytes: &mut &'b [u8]) -> Result<Option<(&'b [u8], &'b [u8])>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let length = usize::from(take(bytes, 1)?[0]);
    let name = take(bytes, length)?;
    let length = u16::from_le_bytes(take(bytes, 2)?.try_into().map_err(|_| damaged_record())?);
    Ok(Some((name, take(bytes, usize::from(length))?)))
}

/// Returns a field's index in [`NAMES`].
pub(super) fn field_index(name: &[u8]) -> Result<usize> {
    NAMES.iter().position(|known| known.as_bytes() == name).ok_or_else(damaged_record)
}

pub(super) fn from_names(mut bytes: &[u8]) -> Result<Account> {
    let mut account = Account::default();
    while let Some((name, field)) = next_named(&mut bytes)? {
        set_field(&mut account, field_index(name)?, field)?;
    }
    Ok(account)
}

pub(super) fn balance_of_names(mut bytes: &[u8]) -> Result<f64> {
    while let Some((name, field)) = next_named(&mut bytes)? {
        if name == NAMES[BALANCE].as_bytes() {
            return balance(field);
        }
    }
    Err(damaged_record())
}

fn push_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(damaged_record())
}

/// Returns a non-string field as one number that has a short varint for small or round values: integers in zigzag form,
/// doubles with reversed bytes.
fn gob_number(account: &Account, at: usize) -> u64 {
    let zigzag = |number: i64| ((number << 1) ^ (number >> 63)) as u64;
    match at {
        5 => zigzag(account.id),
        6 => zigzag(account.age.into()),
        7 => f64::from(account.height).to_bits().swap_bytes(),
        8 => f64::from(account.weight).to_bits().swap_bytes(),
        BALANCE => account.balance.to_bits().swap_bytes(),
        10 => account.is_active.into(),
        11 => zigzag(account.created_at),
        12 => zigzag(account.updated_at),
        13 => zigzag(account.login_count.into()),
        _ => account.score.to_bits().swap_bytes(),
    }
}

fn set_gob_number(account: &mut Account, at: usize, number: u64) {
    let whole = (number >> 1) as i64 ^ -((number & 1) as i64);
    let double = f64::from_bits(number.swap_bytes());
    match at {
        5 => account.id = whole,
        6 => account.age = whole as i32,
        7 => account.height = double as f32,
        8 => account.weight = double as f32,
        BALANCE => account.balance = double,
        10 => account.is_active = number == 1,
        11 => account.created_at = whole,
        12 => account.updated_at = whole,
        13 => account.login_count = whole as i32,
        _ => account.score = double,
    }
}

pub(super) fn to_gob(account: &Account, out: &mut Vec<u8>) {
    let mut last = 0;
    for at in 0..NAMES.len() {
        let (text, number) = if at < 5 { (Some(strings(account)[at]), 0) } else { (None, gob_number(account, at)) };
        if text.map_or(number == 0, |text| text.is_empty()) {
            continue;
        }
        push_varint((at + 1 - last) as u64, out);
        last = at + 1;
        match text {
            Some(text) => {
                push_varint(text.len() as u64, out);
                out.extend_from_slice(text.as_bytes());
            }
            None => push_varint(number, out),
        }
    }
    out.push(0);
}

/// Calls `each` with each field's index and its text or number.
fn each_gob<'b>(mut bytes: &'b [u8], mut each: impl FnMut(usize, &'b [u8], u64) -> Result<()>) -> Result<()> {
    let mut last = 0;
    loop {
        let step = take_varint(&mut bytes)? as usize;
        if step == 0 {
            return Ok(());
        }
        last += step;
        match last - 1 {
            at @ 0..5 => {
                let length = take_varint(&mut bytes)? as usize;
                each(at, take(&mut bytes, length)?, 0)?;
            }
            at @ 5..15 => each(at, &[], take_varint(&mut bytes)?)?,
            _ => return Err(damaged_record()),
        }
    }
}

pub(super) fn from_gob(bytes: &[u8]) -> Result<Account> {
    let mut account = Account::default();
    each_gob(bytes, |at, text, number| {
        if at < 5 {
            return set_field(&mut account, at, text);
        }
        set_gob_number(&mut account, at, number);
        Ok(())
    })?;
    Ok(account)
}

pub(super) fn balance_of_gob(bytes: &[u8]) -> Result<f64> {
    let mut found = 0.0;
    each_gob(bytes, |at, _, number| {
        if at == BALANCE {
            found = f64::from_bits(number.swap_bytes());
        }
        Ok(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_round_trip() {
        let mut accounts: Vec<Account> = (0..500).map(|number| Account::new(3, number)).collect();
        accounts.push(Account::default());
        accounts.push(Account { id: i64::MIN, age: -1, balance: -0.01, score: f64::MAX, ..Account::new(1, 1) });
        type Encoding = (fn(&Account, &mut Vec<u8>), fn(&[u8]) -> Result<Account>, fn(&[u8]) -> Result<f64>);
        let encodings: [Encoding; 3] = [
            (to_binary, from_binary, balance_of_binary),
            (to_names, from_names, balance_of_names),
            (to_gob, from_gob, balance_of_gob),
        ];
        for (encode, decode, balance) in encodings {
            for account in &accounts {
                let mut bytes = Vec::new();
                encode(account, &mut bytes);
                assert_eq!(decode(&bytes).unwrap(), *account);
                assert_eq!(balance(&bytes).unwrap(), account.balance);
                assert!(decode(&bytes[..bytes.len() - 1]).is_err());
            }
        }
    }
}
