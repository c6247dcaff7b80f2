//! Revision tree fuzz target: histories that arrive in fragments and in any order.

use arbitrary::{Result, Unstructured};

use crate::revision::{Revision, RevisionTree};

type Tree = RevisionTree<Revision>;

/// Maximum number of bytes changed, one after the other. More would only make a run longer than several short ones.
const DAMAGES_MAX: usize = 8;

/// A fragment of a history as a peer sends it: revisions, newest first, and whether the newest is a deletion.
type Fragment = (Vec<Revision>, bool);

/// The order of merges affects neither leaves, winner nor ancestry; an encoded tree decodes to the same tree; damaged
/// bytes give an error or no panic.
pub fn revisions(data: &[u8]) {
    check_raw_bytes(data);
    let mut input = Unstructured::new(data);
    let Ok(fragments) = history(&mut input) else { return };
    let forwards = merged(fragments.iter());
    assert!(forwards.leaves().all(|leaf| leaf.payload == leaf.revision), "a leaf keeps its payload");
    let mut shuffled: Vec<&Fragment> = fragments.iter().rev().collect();
    assert_same(&forwards, &merged(shuffled.iter().copied()));
    for at in (1..shuffled.len()).rev() {
        let Ok(other) = input.int_in_range(0..=at) else { break };
        shuffled.swap(at, other);
    }
    assert_same(&forwards, &merged(shuffled.into_iter()));
    assert_same(&forwards, &merged(fragments.iter().chain(&fragments)));
    let bytes = encoded(&forwards);
    assert_same(&forwards, &decoded(&bytes).expect("just encoded"));
    check_pruning(&forwards, input.int_in_range(1..=6).unwrap_or(1));
    check_damage(bytes, &forwards, &mut input);
}

/// Random edits, each with an earlier one as parent or none, and random fragments of the paths to them.
fn history(input: &mut Unstructured<'_>) -> Result<Vec<Fragment>> {
    let mut paths: Vec<Fragment> = Vec::new();
    for number in 0..input.int_in_range(1..=16u8)? {
        let parent = if number == 0 || input.ratio(1, 10)? { None } else { Some(input.choose_index(paths.len())?) };
        let parent = parent.map_or(&[][..], |at| &paths[at].0[..]);
        let deleted = input.arbitrary()?;
        let revision = Revision::of_edit(parent.first(), deleted, &[number]);
        let path = std::iter::once(revision).chain(parent.iter().copied()).collect();
        paths.push((path, deleted));
    }
    let count = input.int_in_range(1..=24)?;
    let fragment = |_| {
        let (path, deleted) = input.choose(&paths)?;
        let length = input.int_in_range(1..=path.len())?;
        Ok((path[..length].to_vec(), *deleted))
    };
    (0..count).map(fragment).collect()
}

fn merged<'p>(fragments: impl Iterator<Item = &'p Fragment>) -> Tree {
    let mut tree = Tree::new();
    for (path, deleted) in fragments {
        tree.merge(path, *deleted, path[0]).expect("a path that counts down");
    }
    tree
}

fn assert_same(a: &Tree, b: &Tree) {
    let leaves =
        |tree: &Tree| tree.leaves().map(|leaf| (leaf.revision, leaf.deleted, leaf.payload)).collect::<Vec<_>>();
    assert_eq!(leaves(a), leaves(b));
    assert_eq!(a.revision_count(), b.revision_count());
    for leaf in a.leaves() {
        assert_eq!(a.ancestry(&leaf.revision), b.ancestry(&leaf.revision));
    }
    // CouchDB's rule: live before deleted, then the longest history, then the greatest hash.
    let best = a.leaves().max_by_key(|leaf| (!leaf.deleted, leaf.revision));
    assert_eq!(a.winner().map(|leaf| leaf.revision), best.map(|leaf| leaf.revision));
}

fn check_pruning(tree: &Tree, limit: usize) {
    let mut short = tree.clone();
    short.prune(limit);
    assert!(short.leaves().eq(tree.leaves()), "pruning removed a leaf");
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

fn check_damage(mut bytes: Vec<u8>, tree: &Tree, input: &mut Unstructured<'_>) {
    for _ in 0..DAMAGES_MAX.min(input.len()) {
        let (Ok(at), Ok(byte)) = (input.int_in_range(0..=bytes.len() - 1), input.arbitrary::<u8>()) else { break };
        bytes[at] = byte;
        let Ok(mut damaged) = decoded(&bytes) else { continue };
        for leaf in tree.leaves() {
            damaged.ancestry(&leaf.revision);
            damaged.merge(&tree.ancestry(&leaf.revision), false, leaf.revision).expect("a path that counts down");
        }
        damaged.prune(2);
    }
}

fn check_raw_bytes(data: &[u8]) {
    if let Ok(tree) = decoded(data) {
        assert_same(&tree, &decoded(&encoded(&tree)).expect("just encoded"));
    }
}
