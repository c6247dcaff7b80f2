//! Model tests of the revision tree against a map from revision to parent.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn revision(text: &str) -> Revision {
    text.parse().unwrap()
}

/// `"3-c 2-b 1-a"`, newest first.
fn path(text: &str) -> Vec<Revision> {
    text.split_whitespace().map(revision).collect()
}

fn tree_of(paths: &[&str]) -> RevisionTree<String> {
    let mut tree = RevisionTree::new();
    for text in paths {
        let path = path(text.trim_end_matches('!'));
        tree.merge(&path, text.ends_with('!'), path[0].to_string()).unwrap();
    }
    tree
}

fn leaves(tree: &RevisionTree<String>) -> Vec<String> {
    tree.leaves()
        .inspect(|leaf| assert_eq!(leaf.payload, leaf.revision.to_string()))
        .map(|l| l.payload.clone())
        .collect()
}

fn ancestry(tree: &RevisionTree<String>, of: &str) -> String {
    tree.ancestry(&revision(of)).iter().map(Revision::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn linear_edits_stay_one_chain() {
    let mut tree = RevisionTree::of_first(revision("1-a"), false, 1);
    let merged = tree.merge(&path("2-b 1-a"), false, 2).unwrap();
    assert_eq!((merged.outcome, &merged.superseded[..]), (MergeOutcome::NewLeaf, &[1][..]));
    let merged = tree.merge(&path("3-c 2-b"), true, 3).unwrap();
    assert_eq!((merged.outcome, &merged.superseded[..]), (MergeOutcome::NewLeaf, &[2][..]));
    assert_eq!(tree.chains.len(), 1);
    assert_eq!(tree.ancestry(&revision("3-c")), path("3-c 2-b 1-a"));
    assert_eq!(tree.ancestry(&revision("2-b")), path("2-b 1-a"));
    assert!(tree.winner().unwrap().deleted);
    assert!(tree.update_payload(&revision("3-c"), 9) && !tree.update_payload(&revision("2-b"), 9));
    assert_eq!(tree.leaf(&revision("3-c")).unwrap().payload, 9);
    assert!(tree.leaf(&revision("2-b")).is_none() && tree.contains(&revision("2-b")));
}

#[test]
fn the_winner_is_living_then_longest_then_greatest() {
    assert_eq!(leaves(&tree_of(&["1-a", "2-c 1-a", "2-b 1-a"])), ["2-c", "2-b"]);
    assert_eq!(leaves(&tree_of(&["1-a", "2-c 1-a!", "2-b 1-a"])), ["2-b", "2-c"]);
    assert_eq!(leaves(&tree_of(&["2-z 1-z", "3-a 2-a 1-a"])), ["3-a", "2-z"]);
    assert_eq!(leaves(&tree_of(&["9-z!", "1-a"])), ["1-a", "9-z"]);
    let tree = tree_of(&["3-c 2-b 1-a", "3-d 2-b", "3-e 2-b 1-a!"]);
    assert_eq!(tree.conflicts().map(|leaf| leaf.payload.as_str()).collect::<Vec<_>>(), ["3-c"]);
    assert_eq!(tree.winner().unwrap().payload, "3-d");
    assert!(RevisionTree::<u8>::new().winner().is_none());
}

#[test]
fn fragments_connect_when_a_path_links_them() {
    let mut tree = tree_of(&["3-c", "2-b", "1-a"]);
    assert_eq!(leaves(&tree), ["3-c", "2-b", "1-a"]);
    let merged = tree.merge(&path("3-c 2-b 1-a"), false, String::new()).unwrap();
    assert_eq!(merged.outcome, MergeOutcome::Connected);
    assert_eq!(&merged.superseded[..], ["2-b", "1-a"]);
    assert_eq!((leaves(&tree), ancestry(&tree, "3-c")), (vec!["3-c".into()], "3-c 2-b 1-a".into()));
    let merged = tree.merge(&path("3-c 2-b 1-a"), false, String::new()).unwrap();
    assert_eq!((merged.outcome, merged.superseded.len()), (MergeOutcome::Unchanged, 0));
    let merged = tree.merge(&path("2-b"), false, String::new()).unwrap();
    assert_eq!(merged.outcome, MergeOutcome::Unchanged);

    // Two branches whose common ancestors arrive later.
    let tree = tree_of(&["4-d 3-c", "4-e 3-x", "3-c 2-b 1-a", "3-x 2-b"]);
    assert_eq!(ancestry(&tree, "4-d"), "4-d 3-c 2-b 1-a");
    assert_eq!(ancestry(&tree, "4-e"), "4-e 3-x 2-b 1-a");
    assert_eq!(tree.revision_count(), 6);
}

#[test]
fn malformed_paths_are_rejected_and_contradictions_ignored() {
    let mut tree = tree_of(&["2-b 1-a"]);
    for bad in ["", "3-c 1-a", "2-c 3-d", "2-c 2-d"] {
        assert!(tree.merge(&path(bad), false, String::new()).is_err(), "{bad}");
    }
    assert_eq!(tree.merge(&path("2-b 1-x"), false, String::new()).unwrap().outcome, MergeOutcome::Unchanged);
    assert_eq!(tree.merge(&path("3-c 2-b 1-x"), false, "3-c".into()).unwrap().outcome, MergeOutcome::NewLeaf);
    assert_eq!((ancestry(&tree, "3-c"), tree.contains(&revision("1-x"))), ("3-c 2-b 1-a".into(), false));
}

#[test]
fn missing_lists_unknown_revisions_and_possible_ancestors() {
    let tree = tree_of(&["3-c 2-b 1-a", "2-x 1-a"]);
    let missing = tree.missing(&path("3-c 2-b 3-z 1-a"));
    assert_eq!((missing.missing, missing.possible_ancestors), (path("3-z"), path("2-x")));
    assert_eq!(tree.missing(&path("3-c 2-x")), Missing::default());
    assert_eq!(RevisionTree::<u8>::new().missing(&path("1-a")).missing, path("1-a"));
}

#[test]
fn pruning_keeps_recent_ancestors_of_every_leaf() {
    let mut tree = tree_of(&["5-e 4-d 3-c 2-b 1-a"]);
    tree.prune(2);
    assert_eq!(ancestry(&tree, "5-e"), "5-e 4-d");
    tree.prune(0);
    assert_eq!(ancestry(&tree, "5-e"), "5-e");

    let mut tree = tree_of(&["6-f 5-e 4-d 3-c 2-b 1-a", "3-x 2-b"]);
    tree.prune(6);
    assert_eq!(tree.revision_count(), 7);
    tree.prune(2);
    assert_eq!((ancestry(&tree, "6-f"), ancestry(&tree, "3-x")), ("6-f 5-e".into(), "3-x 2-b".into()));
    assert_eq!(tree.revision_count(), 4);
}

#[test]
fn a_new_document_takes_19_bytes() {
    let mut out = Vec::new();
    RevisionTree::of_first(Revision::of_edit(None, false, b""), false, ()).encode(&mut out, |(), _| ());
    assert_eq!(out.len(), 19);
}

/// The reference model: the parent of every revision, and the deleted flag of every merged one.
#[derive(Default)]
struct Model {
    parents: BTreeMap<Revision, Option<Revision>>,
    bodies: BTreeMap<Revision, bool>,
}

impl Model {
    fn merge(&mut self, path: &[Revision], deleted: bool) {
        for (at, revision) in path.iter().enumerate() {
            let parent = self.parents.entry(*revision).or_default();
            *parent = parent.or(path.get(at + 1).copied());
        }
        self.bodies.insert(path[0], deleted);
    }

    fn leaves(&self) -> Vec<(Revision, bool)> {
        let inner: BTreeSet<_> = self.parents.values().flatten().collect();
        let mut leaves: Vec<_> =
            self.parents.keys().filter(|at| !inner.contains(at)).map(|at| (*at, self.bodies[at])).collect();
        leaves.sort_by_key(|(at, deleted)| std::cmp::Reverse((!deleted, *at)));
        leaves
    }

    fn ancestry(&self, of: Revision) -> Vec<Revision> {
        std::iter::successors(Some(of), |at| self.parents[at]).collect()
    }
}

/// A history of edits, each of an earlier one or of none, and fragments of it: an edit with part of its ancestry.
fn histories() -> impl Strategy<Value = (Vec<(Vec<Revision>, bool)>, Vec<usize>)> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), 0..10u8), 1..24);
    let fragments = prop::collection::vec((any::<prop::sample::Index>(), 1..8usize), 1..40);
    (edits, fragments).prop_flat_map(|(edits, fragments)| {
        let mut paths: Vec<(Vec<Revision>, bool)> = Vec::new();
        for (number, (parent, deleted, is_root)) in edits.into_iter().enumerate() {
            let parent = if number == 0 || is_root == 0 { &[][..] } else { &paths[parent.index(number)].0[..] };
            let revision = Revision::of_edit(parent.first(), deleted, &[number as u8]);
            let path = std::iter::once(revision).chain(parent.iter().copied()).collect();
            paths.push((path, deleted));
        }
        let cut = |(edit, length): &(prop::sample::Index, usize)| {
            let (path, deleted) = &paths[edit.index(paths.len())];
            (path[..path.len().min(*length)].to_vec(), *deleted)
        };
        let merges: Vec<_> = fragments.iter().map(cut).collect();
        let order: Vec<usize> = (0..merges.len()).collect();
        (Just(merges), Just(order).prop_shuffle())
    })
}

fn check(tree: &RevisionTree<Revision>, model: &Model) {
    let leaves: Vec<_> = tree.leaves().map(|leaf| (leaf.revision, leaf.deleted)).collect();
    assert_eq!(leaves, model.leaves());
    assert!(tree.leaves().all(|leaf| leaf.payload == leaf.revision));
    assert_eq!(tree.revision_count(), model.parents.len());
    for revision in model.parents.keys() {
        assert_eq!(tree.ancestry(revision), model.ancestry(*revision));
    }
}

fn encoded(tree: &RevisionTree<Revision>) -> Vec<u8> {
    let mut out = Vec::new();
    tree.encode(&mut out, |payload, out| out.extend_from_slice(&payload.to_bytes()));
    out
}

fn decoded(mut input: &[u8]) -> Result<RevisionTree<Revision>> {
    RevisionTree::decode(&mut input, |input| {
        let (bytes, rest) = input.split_first_chunk().ok_or_else(|| Error::corrupt("cut short"))?;
        *input = rest;
        Revision::from_bytes(bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn merges_in_any_order_match_the_model((merges, order) in histories()) {
        let mut model = Model::default();
        let mut tree = RevisionTree::new();
        for (path, deleted) in &merges {
            let before = encoded(&tree);
            let merged = tree.merge(path, *deleted, path[0]).unwrap();
            prop_assert_eq!(merged.outcome == MergeOutcome::Unchanged, before == encoded(&tree));
            model.merge(path, *deleted);
            check(&tree, &model);
        }
        let mut shuffled = RevisionTree::new();
        for at in order {
            let (path, deleted) = &merges[at];
            shuffled.merge(path, *deleted, path[0]).unwrap();
        }
        check(&shuffled, &model);
        check(&decoded(&encoded(&tree)).unwrap(), &model);
    }

    #[test]
    fn pruning_keeps_leaves_and_recent_ancestors((merges, _) in histories(), limit in 1..6usize) {
        let mut tree = RevisionTree::new();
        for (path, deleted) in &merges {
            tree.merge(path, *deleted, path[0]).unwrap();
        }
        let whole = tree.clone();
        tree.prune(limit);
        prop_assert!(tree.leaves().eq(whole.leaves()));
        for leaf in whole.leaves() {
            let path = whole.ancestry(&leaf.revision);
            let near = &path[..path.len().min(limit)];
            prop_assert!(tree.ancestry(&leaf.revision).starts_with(near));
        }
        let near: BTreeSet<_> =
            whole.leaves().flat_map(|leaf| whole.ancestry(&leaf.revision).into_iter().take(limit)).collect();
        prop_assert_eq!(tree.revision_count(), near.len());
    }

    #[test]
    fn damaged_bytes_never_panic(
        (merges, _) in histories(),
        at: prop::sample::Index,
        byte: u8,
        cut: prop::sample::Index,
    ) {
        let mut tree = RevisionTree::new();
        for (path, deleted) in &merges {
            tree.merge(path, *deleted, path[0]).unwrap();
        }
        let mut bytes = encoded(&tree);
        prop_assert!(decoded(&bytes[..cut.index(bytes.len())]).is_err());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(mut damaged) = decoded(&bytes) {
            for leaf in tree.leaves() {
                damaged.ancestry(&leaf.revision);
                damaged.merge(&tree.ancestry(&leaf.revision), false, leaf.revision).unwrap();
            }
            damaged.prune(2);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes: Vec<u8>) {
        let _outcome = decoded(&bytes);
    }
}

#[test]
fn a_stored_tree_has_leaves() {
    let message = decoded(&[0]).unwrap_err().to_string();
    assert!(message.contains("has no leaves"), "{message}");
}
