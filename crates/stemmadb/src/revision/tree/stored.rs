//! Stored form of a revision tree.
//!
//! ```text
//! varint       number of chains
//! each chain:
//!   varint     ancestors << 2 | has a fork point << 1 | leaf is deleted
//!   varint     generation of the leaf
//!   16 bytes   hash of the leaf
//!   16 bytes   hash of the fork point, if there is one
//!   16 × n     hashes of the ancestors, oldest first
//!   …          the leaf's payload, as its owner writes it
//! ```
//!
//! The tree of a new document takes 19 bytes and its payload.

use smallvec::SmallVec;

use super::{Chain, Leaf, RevisionTree};
use crate::revision::revision_id::{HASH_BYTES, Hash, Revision};
use crate::varint;
use crate::{Error, Result};

const CHAIN_BYTES_MIN: usize = 2 + HASH_BYTES;
const DELETED: u64 = 1;
const FORK: u64 = 2;

impl<T: Clone> RevisionTree<T> {
    /// Appends the stored form; `put_payload` appends a payload.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, mut put_payload: impl FnMut(&T, &mut Vec<u8>)) {
        varint::write(self.chains.len() as u64, out);
        for Chain { leaf, ancestors, fork } in &self.chains {
            let flags = if leaf.deleted { DELETED } else { 0 } | if fork.is_some() { FORK } else { 0 };
            varint::write((ancestors.len() as u64) << 2 | flags, out);
            varint::write(u64::from(leaf.revision.generation()), out);
            out.extend_from_slice(leaf.revision.hash());
            if let Some(fork) = fork {
                out.extend_from_slice(fork);
            }
            out.extend_from_slice(ancestors.as_flattened());
            put_payload(&leaf.payload, out);
        }
    }

    /// Decodes a tree from the front of `input` and advances it; `take_payload` decodes a payload. Allocates no more
    /// than a small multiple of the input.
    ///
    /// # Errors
    /// `Corrupt` if the bytes are not a tree.
    pub(crate) fn decode(
        input: &mut &[u8],
        mut take_payload: impl FnMut(&mut &[u8]) -> Result<T>,
    ) -> Result<RevisionTree<T>> {
        let count = varint::read(input)?;
        if count > (input.len() / CHAIN_BYTES_MIN) as u64 {
            return Err(damaged("has more leaves than bytes"));
        }
        let mut chains = SmallVec::with_capacity(count as usize);
        for _ in 0..count {
            chains.push(take_chain(input, &mut take_payload)?);
        }
        let tree = RevisionTree { chains };
        tree.verify()?;
        Ok(tree)
    }

    /// Checks that there is a winner, that leaves are sorted, and that fork points are ancestors in other chains.
    fn verify(&self) -> Result<()> {
        if self.chains.is_empty() {
            return Err(damaged("has no leaves"));
        }
        if !self.chains.is_sorted_by(|a, b| a.leaf.rank() > b.leaf.rank()) {
            return Err(damaged("has its leaves out of order"));
        }
        let is_ancestor = |fork| self.locate(&fork).is_some_and(|at| at.index < self.chains[at.chain].ancestors.len());
        if !self.chains.iter().filter_map(Chain::fork_point).all(is_ancestor) {
            return Err(damaged("branches off an unknown revision"));
        }
        Ok(())
    }
}

fn take_chain<T>(input: &mut &[u8], take_payload: &mut impl FnMut(&mut &[u8]) -> Result<T>) -> Result<Chain<T>> {
    let head = varint::read(input)?;
    let generation = u32::try_from(varint::read(input)?).map_err(|_| damaged("has an impossible generation"))?;
    let hash = take_hash(input)?;
    let fork = if head & FORK != 0 { Some(take_hash(input)?) } else { None };
    let count = head >> 2;
    if count + u64::from(fork.is_some()) >= u64::from(generation) {
        return Err(damaged("has more ancestors than generations"));
    }
    if count > (input.len() / HASH_BYTES) as u64 {
        return Err(damaged("is cut short"));
    }
    let (ancestors, rest) = input.split_at(count as usize * HASH_BYTES);
    *input = rest;
    let ancestors = ancestors.as_chunks::<HASH_BYTES>().0.to_vec();
    let leaf = Leaf {
        revision: Revision::from_parts(generation, hash),
        deleted: head & DELETED != 0,
        payload: take_payload(input)?,
    };
    Ok(Chain { leaf, ancestors, fork })
}

fn take_hash(input: &mut &[u8]) -> Result<Hash> {
    let (hash, rest) = input.split_first_chunk().ok_or_else(|| damaged("is cut short"))?;
    *input = rest;
    Ok(*hash)
}

fn damaged(how: &str) -> Error {
    Error::corrupt(format!("a stored revision tree {how}"))
}
