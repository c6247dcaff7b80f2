//! Layout constants and encodings shared by the packer and the reader: tags, widths, and doubles as short decimals.

/// The first byte of a packed value. The payload extends to the end of the value.
pub(crate) struct Tag;

impl Tag {
    /// No payload.
    pub(crate) const NULL: u8 = 0x00;
    /// No payload.
    pub(crate) const FALSE: u8 = 0x01;
    /// No payload.
    pub(crate) const TRUE: u8 = 0x02;
    /// Up to 8 bytes: the integer, big-endian without leading zero bytes.
    pub(crate) const INTEGER: u8 = 0x03;
    /// Up to 8 bytes: the bitwise complement of the integer (-1 is 0, -2 is 1).
    pub(crate) const NEGATIVE_INTEGER: u8 = 0x04;
    /// Up to 8 bytes: the leading bytes of the double's bits; the rest are zero.
    pub(crate) const DOUBLE: u8 = 0x05;
    /// The UTF-8 of a string.
    pub(crate) const STRING: u8 = 0x06;
    /// First of 8 tags, for 1 to 8 decimal places. Up to 8 bytes: the digits as an integer.
    pub(crate) const DECIMAL: u8 = 0x10;
    /// The same for negative numbers.
    pub(crate) const NEGATIVE_DECIMAL: u8 = 0x18;
    /// First of 4 tags, for offset tables of 1 to 4 bytes per entry: the count, the elements, the table.
    pub(crate) const ARRAY: u8 = 0x20;
    /// The same with the shape number in place of the count.
    pub(crate) const OBJECT: u8 = 0x24;
    /// The same with the count, and each value preceded by its name's length and its name.
    pub(crate) const NAMED_OBJECT: u8 = 0x28;
    /// The first tag after those of containers.
    pub(crate) const CONTAINERS_END: u8 = 0x2C;
    /// The top bit: the other bits are an integer from 0 to 127. No payload.
    pub(crate) const SMALL_INTEGER: u8 = 0x80;
}

/// The most decimal places of [`Tag::DECIMAL`].
pub(crate) const PLACES_MAX: usize = 8;

const POWERS: [f64; PLACES_MAX + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8];

/// Integers up to this are exact as doubles.
const MANTISSA_MAX: u64 = 1 << 53;

/// The bytes per entry of an offset table whose largest entry is `end`.
pub(crate) fn entry_width(end: u32) -> usize {
    byte_width(end.into()).max(1)
}

/// The bytes that `word` takes without its leading zero bytes.
pub(crate) fn byte_width(word: u64) -> usize {
    8 - word.leading_zeros() as usize / 8
}

/// The absolute value of `double` as (digits, decimal places) with the fewest places; `None` if no such decimal is
/// exact.
pub(crate) fn to_decimal(double: f64) -> Option<(u64, usize)> {
    let magnitude = double.abs();
    if magnitude >= MANTISSA_MAX as f64 {
        return None;
    }
    (1..=PLACES_MAX).find_map(|places| {
        let digits = (magnitude * POWERS[places]).round();
        let near = (magnitude * POWERS[places] - digits).abs() <= digits * 1e-15;
        let exact = near && digits < MANTISSA_MAX as f64 && digits / POWERS[places] == magnitude;
        exact.then_some((digits as u64, places))
    })
}

/// The double that [`to_decimal`] was given, without its sign; `None` if the digits exceed what [`to_decimal`] returns.
pub(crate) fn from_decimal(digits: u64, places: usize) -> Option<f64> {
    // The quotient of two exact doubles is the double nearest to the decimal, which parsing its text gives, too.
    (digits < MANTISSA_MAX).then(|| digits as f64 / POWERS[places])
}
