//! Approximate number of distinct keys: HyperLogLog with 2,048 registers and a typical error of two percent.
//!
//! Layout: with few keys, a byte 0, then for each nonzero register its number (two bytes, little-endian) and its rank,
//! in ascending order; otherwise a byte 1 and all registers, one byte each.

use twox_hash::XxHash3_64;

use super::{Fold, damaged};
use crate::Result;

const REGISTER_BITS: u32 = 11;
const REGISTERS: usize = 1 << REGISTER_BITS;
/// With more entries than this, storing all registers is shorter.
const ENTRIES_MAX: usize = REGISTERS / 3;

pub(in crate::view) struct Sketch {
    has_rows: bool,
    ranks: Box<[u8; REGISTERS]>,
}

impl Default for Sketch {
    fn default() -> Self {
        Sketch { has_rows: false, ranks: Box::new([0; REGISTERS]) }
    }
}

impl Sketch {
    pub(in crate::view) fn decode(partial: &[u8]) -> Result<Self> {
        let mut sketch = Sketch::default();
        sketch.part(partial)?;
        Ok(sketch)
    }

    fn raise(&mut self, register: usize, rank: u8) -> Result<()> {
        let current = self.ranks.get_mut(register).ok_or_else(damaged)?;
        *current = rank.max(*current);
        Ok(())
    }

    /// Estimates the number of distinct keys.
    pub(in crate::view) fn estimate(&self) -> u64 {
        let count = REGISTERS as f64;
        let sum: f64 = self.ranks.iter().map(|rank| 2f64.powi(-i32::from(*rank))).sum();
        let raw = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let zeros = self.ranks.iter().filter(|rank| **rank == 0).count();
        let estimate = if raw <= 2.5 * count && zeros > 0 { count * (count / zeros as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

impl Fold for Sketch {
    fn row(&mut self, key: &[u8], _value: &[u8]) -> Result<()> {
        self.has_rows = true;
        let hash = XxHash3_64::oneshot(key);
        let rest = hash >> REGISTER_BITS;
        let rank = (rest.leading_zeros() - REGISTER_BITS + 1) as u8;
        self.raise(hash as usize % REGISTERS, rank)
    }

    fn part(&mut self, partial: &[u8]) -> Result<()> {
        self.has_rows = true;
        match partial.split_first() {
            Some((0, entries)) => {
                let (entries, rest) = entries.as_chunks::<3>();
                if !rest.is_empty() {
                    return Err(damaged());
                }
                entries
                    .iter()
                    .try_for_each(|[low, high, rank]| self.raise(usize::from(u16::from_le_bytes([*low, *high])), *rank))
            }
            Some((1, ranks)) if ranks.len() == REGISTERS => {
                ranks.iter().enumerate().try_for_each(|(register, rank)| self.raise(register, *rank))
            }
            _ => Err(damaged()),
        }
    }

    fn finish(self: Box<Self>) -> Result<Vec<u8>> {
        if !self.has_rows {
            return Ok(Vec::new());
        }
        let entries = self.ranks.iter().enumerate().filter(|(_, rank)| **rank > 0);
        if entries.clone().count() > ENTRIES_MAX {
            return Ok([&[1], self.ranks.as_slice()].concat());
        }
        let mut partial = vec![0];
        for (register, rank) in entries {
            partial.extend_from_slice(&(register as u16).to_le_bytes());
            partial.push(*rank);
        }
        Ok(partial)
    }
}
