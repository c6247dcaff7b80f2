//! Revision trees: histories that arrive in pieces and in any order.

use arbitrary::{Result, Unstructured};

use crate::revision::{Revision, RevisionTree};

type Tree = RevisionTree<Revision>;

/// Bytes that are changed one after the other: more would make a run longer, and no other than several short ones.
const DAMAGES_MAX: usize = 8;

/// A piece of a history as a peer sends it: newest first, and whether the newest is a deletion.
type Piece = (Vec<Revision>, bool);

/// The order of merges makes no difference to leaves, winner and descent; what is stored is read again; damage is told or harmless.
pub fn revisions(data: &[u8]) {
    raw(data);
    let mut given = Unstructured::new(data);
    let Ok(pieces) = history(&mut given) else { return };
    let forwards = merged(pieces.iter());
    assert!(forwards.leaves().all(|leaf| leaf.payload == leaf.revision), "a leaf keeps what was stored for it");
    let mut shuffled: Vec<&Piece> = pieces.iter().rev().collect();
    same(&forwards, &merged(shuffled.iter().copied()));
    for at in (1..shuffled.len()).rev() {
        let Ok(other) = given.int_in_range(0..=at) else { break };
        shuffled.swap(at, other);
    }
    same(&forwards, &merged(shuffled.into_iter()));
    same(&forwards, &merged(pieces.iter().chain(&pieces)));
    let bytes = encoded(&forwards);
    same(&forwards, &decoded(&bytes).expect("encoded here"));
    pruned(&forwards, given.int_in_range(1..=6).unwrap_or(1));
    damaged(bytes, &forwards, &mut given);
}

/// Edits, each of an earlier one or of nothing, and pieces of the paths that lead to them.
fn history(given: &mut Unstructured<'_>) -> Result<Vec<Piece>> {
    let mut paths: Vec<Piece> = Vec::new();
    for number in 0..given.int_in_range(1..=16u8)? {
        let parent = if number == 0 || given.ratio(1, 10)? { None } else { Some(given.choose_index(paths.len())?) };
        let parent = parent.map_or(&[][..], |at| &paths[at].0[..]);
        let deleted = given.arbitrary()?;
        let revision = Revision::of_edit(parent.first(), deleted, &[number]);
        let path = std::iter::once(revision).chain(parent.iter().copied()).collect();
        paths.push((path, deleted));
    }
    let count = given.int_in_range(1..=24)?;
    let piece = |_| {
        let (path, deleted) = given.choose(&paths)?;
        let length = given.int_in_range(1..=path.len())?;
        Ok((path[..length].to_vec(), *deleted))
    };
    (0..count).map(piece).collect()
}

fn merged<'p>(pieces: impl Iterator<Item = &'p Piece>) -> Tree {
    let mut tree = Tree::new();
    for (path, deleted) in pieces {
        tree.merge(path, *deleted, path[0]).expect("a path that counts down");
    }
    tree
}

fn same(a: &Tree, b: &Tree) {
    let leaves =
        |tree: &Tree| tree.leaves().map(|leaf| (leaf.revision, leaf.deleted, leaf.payload)).collect::<Vec<_>>();
    assert_eq!(leaves(a), leaves(b));
    assert_eq!(a.revision_count(), b.revision_count());
    for leaf in a.leaves() {
        assert_eq!(a.ancestry(&leaf.revision), b.ancestry(&leaf.revision));
    }
    // By the rule itself: alive before deleted, then the longest history, then the greatest hash.
    let best = a.leaves().max_by_key(|leaf| (!leaf.deleted, leaf.revision));
    assert_eq!(a.winner().map(|leaf| leaf.revision), best.map(|leaf| leaf.revision));
}

fn pruned(tree: &Tree, limit: usize) {
    let mut short = tree.clone();
    short.prune(limit);
    assert!(short.leaves().eq(tree.leaves()), "a leaf was forgotten");
    for leaf in tree.leaves() {
        let path = tree.ancestry(&leaf.revision);
        assert!(short.ancestry(&leaf.revision).starts_with(&path[..path.len().min(limit)]));
    }
}

fn encoded(tree: &Tree) -> Vec<u8> {
    let mut out = Vec::new();
    tree.encode(&mut out, |payload, out| out.extend_from_slice(&payload.to_bytes()));
    out
}

fn decoded(mut input: &[u8]) -> crate::Result<Tree> {
    Tree::decode(&mut input, |input| {
        let (bytes, rest) = input.split_first_chunk().ok_or_else(|| crate::Error::corrupt("cut short"))?;
        *input = rest;
        Revision::from_bytes(bytes)
    })
}

fn damaged(mut bytes: Vec<u8>, tree: &Tree, given: &mut Unstructured<'_>) {
    for _ in 0..DAMAGES_MAX.min(given.len()) {
        let (Ok(at), Ok(byte)) = (given.int_in_range(0..=bytes.len() - 1), given.arbitrary::<u8>()) else { break };
        bytes[at] = byte;
        let Ok(mut damaged) = decoded(&bytes) else { continue };
        for leaf in tree.leaves() {
            damaged.ancestry(&leaf.revision);
            damaged.merge(&tree.ancestry(&leaf.revision), false, leaf.revision).expect("a path that counts down");
        }
        damaged.prune(2);
    }
}

fn raw(data: &[u8]) {
    if let Ok(tree) = decoded(data) {
        same(&tree, &decoded(&encoded(&tree)).expect("encoded here"));
    }
}
