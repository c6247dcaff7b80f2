//! The strategies on LMDB, the storage engine below Stemma's tree.

use std::ops::Bound;
use std::path::Path;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, Env, EnvFlags, EnvOpenOptions, RoTxn, RwTxn};

use super::encode::{
    NAMES, Strategy, balance, balance_of_binary, balance_of_gob, balance_of_names, field, field_index, from_binary,
    from_gob, from_names, set_field, to_binary, to_gob, to_names,
};
use crate::Result;
use crate::workload::Account;

/// Address space for the largest experiment; disk space is used only as needed.
const MAP_BYTES: usize = 64 << 30;
/// Suffix of the key under which a record's hot fields are stored.
const HOT: u8 = 1;

/// An LMDB environment with one database of records.
pub(super) struct Lmdb {
    env: Env,
    records: Database<'static, Bytes, Bytes>,
    strategy: Strategy,
}

fn key(id: u64) -> [u8; 8] {
    id.to_be_bytes()
}

fn longer_key(id: u64, rest: &[u8]) -> Vec<u8> {
    [&key(id), rest].concat()
}

fn missing(id: u64) -> crate::Failure {
    format!("record {id} is not there").into()
}

/// Encodes balance, login count and update time.
fn hot_fields(account: &Account) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&account.balance.to_le_bytes());
    bytes[8..12].copy_from_slice(&account.login_count.to_le_bytes());
    bytes[12..].copy_from_slice(&account.updated_at.to_le_bytes());
    bytes
}

/// Returns the record without its hot fields.
fn without_hot_fields(account: &Account) -> Account {
    Account { balance: 0.0, login_count: 0, updated_at: 0, ..account.clone() }
}

fn set_hot_fields(account: &mut Account, hot: &[u8]) -> Result<()> {
    let part = |range: std::ops::Range<usize>| hot.get(range).ok_or("a record is damaged");
    set_field(account, field_index(b"balance")?, part(0..8)?)?;
    set_field(account, field_index(b"login_count")?, part(8..12)?)?;
    set_field(account, field_index(b"updated_at")?, part(12..20)?)
}

impl Lmdb {
    /// Opens the environment in `directory`, creating it if needed. Commits are flushed only if `synced`.
    pub(super) fn open(directory: &Path, strategy: Strategy, synced: bool) -> Result<Self> {
        std::fs::create_dir_all(directory)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(MAP_BYTES);
        #[expect(unsafe_code, reason = "mapping a file is unsafe by nature; heed says so with an unsafe `open`")]
        // SAFETY: the file is private to this run, in a temporary directory, and opened once at a time. Unsynced data
        // may be lost on power failure, which is acceptable here.
        let env = unsafe {
            if !synced {
                options.flags(EnvFlags::NO_SYNC);
            }
            options.open(directory)?
        };
        let transaction = env.write_txn()?;
        let records = env.create_databases_and_commit(transaction, |opener, transaction| {
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(opener.create_database(transaction, None)?))
        });
        let records = records?.unwrap_commit();
        Ok(Lmdb { env, records, strategy })
    }

    /// Inserts records, one per transaction or all in one.
    pub(super) fn insert(&self, accounts: &[Account], bulk: bool) -> Result<()> {
        for chunk in accounts.chunks(if bulk { accounts.len() } else { 1 }) {
            let mut transaction = self.env.write_txn()?;
            chunk.iter().try_for_each(|account| self.put(&mut transaction, account))?;
            transaction.commit()?;
        }
        Ok(())
    }

    fn put(&self, transaction: &mut RwTxn<'_>, account: &Account) -> Result<()> {
        let id = account.id as u64;
        let mut bytes = Vec::with_capacity(448);
        match self.strategy {
            Strategy::Binary => to_binary(account, &mut bytes),
            Strategy::Names => to_names(account, &mut bytes),
            Strategy::Json => serde_json::to_writer(&mut bytes, account)?,
            Strategy::Gob => to_gob(account, &mut bytes),
            Strategy::MultiKv => {
                for (at, name) in NAMES.iter().enumerate() {
                    self.records.put(transaction, &longer_key(id, name.as_bytes()), &field(account, at))?;
                }
                return Ok(());
            }
            Strategy::HotFields => {
                to_binary(&without_hot_fields(account), &mut bytes);
                self.records.put(transaction, &longer_key(id, &[HOT]), &hot_fields(account))?;
            }
        }
        Ok(self.records.put(transaction, &key(id), &bytes)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Account> {
        match self.strategy {
            Strategy::Binary | Strategy::HotFields => from_binary(bytes),
            Strategy::Names => from_names(bytes),
            Strategy::Gob => from_gob(bytes),
            Strategy::Json | Strategy::MultiKv => Ok(serde_json::from_slice(bytes)?),
        }
    }

    /// Reads a record in its own transaction.
    pub(super) fn get(&self, id: u64) -> Result<Account> {
        let transaction = self.env.read_txn()?;
        self.get_in(&transaction, id)
    }

    fn get_in(&self, transaction: &RoTxn<'_>, id: u64) -> Result<Account> {
        match self.strategy {
            Strategy::MultiKv | Strategy::HotFields => {
                self.range(transaction, id, 1)?.pop().filter(|one| one.id as u64 == id)
            }
            _ => self.records.get(transaction, &key(id))?.map(|bytes| self.decode(bytes)).transpose()?,
        }
        .ok_or_else(|| missing(id))
    }

    /// Reads records in id order in one transaction.
    pub(super) fn get_many(&self, first: u64, count: usize) -> Result<Vec<Account>> {
        let transaction = self.env.read_txn()?;
        self.range(&transaction, first, count)
    }

    fn range(&self, transaction: &RoTxn<'_>, first: u64, count: usize) -> Result<Vec<Account>> {
        let mut found: Vec<Account> = Vec::with_capacity(count);
        let mut last: Option<[u8; 8]> = None;
        let from = key(first);
        for pair in self.records.range(transaction, &(Bound::Included(&from[..]), Bound::Unbounded))? {
            let (long, bytes) = pair?;
            let (id, rest) = long.split_first_chunk::<8>().ok_or("a key is damaged")?;
            if last != Some(*id) {
                if found.len() == count {
                    break;
                }
                last = Some(*id);
                found.push(if rest.is_empty() { self.decode(bytes)? } else { Account::default() });
                if rest.is_empty() {
                    continue;
                }
            }
            let account = found.last_mut().expect("pushed before");
            match self.strategy {
                Strategy::HotFields => set_hot_fields(account, bytes)?,
                _ => set_field(account, field_index(rest)?, bytes)?,
            }
        }
        Ok(found)
    }

    /// Sums all balances in one transaction.
    pub(super) fn sum(&self, count: u64) -> Result<f64> {
        let transaction = self.env.read_txn()?;
        let mut sum = 0.0;
        if matches!(self.strategy, Strategy::MultiKv | Strategy::HotFields) {
            let rest: &[u8] = if self.strategy == Strategy::HotFields { &[HOT] } else { b"balance" };
            for id in 0..count {
                let bytes = self.records.get(&transaction, &longer_key(id, rest))?.ok_or_else(|| missing(id))?;
                sum += balance(bytes.get(..8).ok_or("a record is damaged")?)?;
            }
            return Ok(sum);
        }
        for pair in self.records.iter(&transaction)? {
            let (_, bytes) = pair?;
            sum += match self.strategy {
                Strategy::Names => balance_of_names(bytes)?,
                Strategy::Json => serde_json::from_slice::<Balance>(bytes)?.balance,
                Strategy::Gob => balance_of_gob(bytes)?,
                _ => balance_of_binary(bytes)?,
            };
        }
        Ok(sum)
    }

    /// Updates one balance in its own transaction.
    pub(super) fn set_balance(&self, id: u64, balance: f64) -> Result<()> {
        let mut transaction = self.env.write_txn()?;
        match self.strategy {
            Strategy::MultiKv => {
                self.records.put(&mut transaction, &longer_key(id, b"balance"), &balance.to_le_bytes())?;
            }
            Strategy::HotFields => {
                let key = longer_key(id, &[HOT]);
                let mut hot = self.records.get(&transaction, &key)?.ok_or_else(|| missing(id))?.to_vec();
                hot[..8].copy_from_slice(&balance.to_le_bytes());
                self.records.put(&mut transaction, &key, &hot)?;
            }
            _ => {
                let mut account = self.get_in(&transaction, id)?;
                account.balance = balance;
                self.put(&mut transaction, &account)?;
            }
        }
        Ok(transaction.commit()?)
    }

    /// Closes the environment and waits until it is closed.
    pub(super) fn close(self) {
        self.env.prepare_for_closing().wait();
    }
}

/// Decodes only the balance from JSON.
#[derive(serde::Deserialize)]
struct Balance {
    balance: f64,
}
