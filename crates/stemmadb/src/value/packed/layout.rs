//! What the packer and the reader must agree on: tags, widths, and doubles as short decimals.

/// The first byte of a packed value. What follows reaches to the end of the value's extent.
pub(crate) struct Tag;

impl Tag {
    /// Nothing follows.
    pub(crate) const NULL: u8 = 0x00;
    /// Nothing follows.
    pub(crate) const FALSE: u8 = 0x01;
    /// Nothing follows.
    pub(crate) const TRUE: u8 = 0x02;
    /// Up to 8 bytes: the integer.
    pub(crate) const INTEGER: u8 = 0x03;
    /// Up to 8 bytes: all bits of the integer turned over (-1 is 0, -2 is 1).
    pub(crate) const NEGATIVE_INTEGER: u8 = 0x04;
    /// Up to 8 bytes: the first bytes of the double's bits, the others being zero.
    pub(crate) const DOUBLE: u8 = 0x05;
    /// The UTF-8 of a string.
    pub(crate) const STRING: u8 = 0x06;
    /// And the 7 tags after it, for 1 to 8 decimal places: up to 8 bytes, the digits as an integer.
    pub(crate) const DECIMAL: u8 = 0x10;
    /// The same, below zero.
    pub(crate) const NEGATIVE_DECIMAL: u8 = 0x18;
    /// And the 3 tags after it, for a table of 1 to 4 bytes an entry: the count, the elements, the table.
    pub(crate) const ARRAY: u8 = 0x20;
    /// The same with the number of the shape in place of the count.
    pub(crate) const OBJECT: u8 = 0x24;
    /// The same with the count, and before each value its name with its length.
    pub(crate) const NAMED_OBJECT: u8 = 0x28;
    /// The first tag that is not one of a container.
    pub(crate) const CONTAINERS_END: u8 = 0x2C;
    /// The top bit: an integer from 0 to 127 in the other bits, nothing follows.
    pub(crate) const SMALL_INTEGER: u8 = 0x80;
}

/// Decimal places of [`Tag::DECIMAL`].
pub(crate) const PLACES_MAX: usize = 8;

const POWERS: [f64; PLACES_MAX + 1] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8];

/// Integers up to here are exact as doubles.
const MANTISSA_MAX: u64 = 1 << 53;

/// How many bytes an entry of a table takes whose largest is `end`.
pub(crate) fn width_of(end: u32) -> usize {
    bytes_of(end.into()).max(1)
}

/// How many bytes `word` takes without its leading zeros.
pub(crate) fn bytes_of(word: u64) -> usize {
    8 - word.leading_zeros() as usize / 8
}

/// The fewest decimal places, and the digits as an integer, that give exactly the magnitude of `double`.
pub(crate) fn decimal_of(double: f64) -> Option<(u64, usize)> {
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

/// The magnitude that [`decimal_of`] was given; none for digits beyond what it gives.
pub(crate) fn double_of(digits: u64, places: usize) -> Option<f64> {
    // Two exact doubles divided give the double nearest to the decimal, the one that its text is parsed as.
    (digits < MANTISSA_MAX).then(|| digits as f64 / POWERS[places])
}
