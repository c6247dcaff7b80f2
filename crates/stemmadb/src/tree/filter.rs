//! Bloom filter: tells for most keys that a run file does not have them, without reading a block.
//!
//! ```text
//! 64 bytes × n    one cache line per group of keys; a key sets 6 of its 512 bits
//! ```
//!
//! With 10 bits per key, about one absent key in a hundred is not recognized.

use twox_hash::XxHash3_64;

const BITS_PER_KEY: usize = 10;
const PROBE_COUNT: u32 = 6;
const LINE_BYTES: usize = 64;

/// The hash of a key, which is what a filter stores.
#[inline]
pub(super) fn hash(key: &[u8]) -> u64 {
    XxHash3_64::oneshot(key)
}

/// Encodes a filter for keys with these hashes; empty if there are none.
pub(super) fn build(hashes: &[u64]) -> Vec<u8> {
    let line_count = (hashes.len() * BITS_PER_KEY).div_ceil(8 * LINE_BYTES);
    let mut bytes = vec![0; line_count * LINE_BYTES];
    for &hash in hashes {
        let line = line_of(hash, line_count);
        probes(hash).for_each(|bit| bytes[line * LINE_BYTES + bit / 8] |= 1 << (bit % 8));
    }
    bytes
}

/// Whether a key with this hash may be among those the filter was built for.
#[inline]
pub(super) fn may_contain(bytes: &[u8], hash: u64) -> bool {
    let line_count = bytes.len() / LINE_BYTES;
    if line_count == 0 {
        return false;
    }
    let Some(line) = bytes.get(line_of(hash, line_count) * LINE_BYTES..).and_then(|rest| rest.get(..LINE_BYTES)) else {
        return true;
    };
    probes(hash).all(|bit| line[bit / 8] & 1 << (bit % 8) != 0)
}

/// The cache line of a hash: its high half, scaled to the number of lines.
#[inline]
fn line_of(hash: u64, line_count: usize) -> usize {
    ((hash >> 32) as usize * line_count) >> 32
}

/// The bits of a hash within its line, from its low half.
#[inline]
fn probes(hash: u64) -> impl Iterator<Item = usize> {
    let (first, step) = (hash as u32, (hash as u32).rotate_left(17) | 1);
    (0..PROBE_COUNT).map(move |probe| (first.wrapping_add(step.wrapping_mul(probe)) >> 23) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_keys_are_found_and_most_absent_ones_are_not() {
        let keys: Vec<[u8; 4]> = (0..20_000_u32).map(u32::to_be_bytes).collect();
        let hashes: Vec<u64> = keys.iter().map(|key| hash(key)).collect();
        let filter = build(&hashes);
        assert!(hashes.iter().all(|&hash| may_contain(&filter, hash)));
        let absent = (20_000..120_000_u32).filter(|key| may_contain(&filter, hash(&key.to_be_bytes()))).count();
        assert!(absent < 3_000, "{absent} of 100,000 absent keys are not recognized");
    }

    #[test]
    fn empty_filter_contains_nothing() {
        assert!(!may_contain(&build(&[]), hash(b"a")));
    }
}
