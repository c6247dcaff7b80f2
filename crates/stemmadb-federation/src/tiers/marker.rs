//! The revisions that a move writes.
//!
//! A document that leaves a database gets a successor there, its *marker*: a deletion, or a stub. The marker's revision
//! is computed from the revision that moved, and can be recognized by itself: its hash begins with `MAGIC`. So every
//! attempt of a move writes the same marker, and a feed tells moves from edits without reading documents. A document
//! that returns succeeds the marker: the revision tree stays one line.

use stemmadb::{Error, Result, Revision};

/// The field of a stub, and of the deletion of a document that moved, with the name of the tier.
pub(super) const FIELD: &str = "stemma_tier";

/// The first half of a marker's hash.
const MAGIC: &[u8; 8] = b"stm.tier";

/// The marker of a document that leaves a database with this revision.
pub(super) fn marker_of(revision: &Revision) -> Result<Revision> {
    let digest = Revision::of_edit(Some(revision), true, b"tier");
    let half: String = digest.hash()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let magic: String = MAGIC.iter().map(|byte| format!("{byte:02x}")).collect();
    // A hash that ends with zeros could be mistaken for a text.
    parse(revision.generation() + 1, &format!("{magic}{}1", &half[..15]))
}

/// Whether a revision is a marker.
pub(super) fn is_marker(revision: &Revision) -> bool {
    revision.hash().starts_with(MAGIC)
}

/// The revision with which a document returns: it succeeds the marker. It has the hash of the revision that moved.
pub(super) fn returned(revision: &Revision) -> Result<Revision> {
    let text = revision.to_string();
    let hash = text.split_once('-').map_or("", |(_, hash)| hash);
    parse(revision.generation() + 2, hash)
}

fn parse(generation: u32, hash: &str) -> Result<Revision> {
    format!("{generation}-{hash}").parse().map_err(|error: Error| error.within("the revision of a move"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_reproducible_and_recognized() {
        for text in ["1-7051cbe5c8faecd085a3fa619e6e6337", "3-abc"] {
            let revision: Revision = text.parse().unwrap();
            let marker = marker_of(&revision).unwrap();
            assert_eq!(marker, marker_of(&revision).unwrap());
            assert_eq!(marker.generation(), revision.generation() + 1);
            assert!(is_marker(&marker) && !is_marker(&revision));
            assert_eq!(marker.to_string().parse::<Revision>().unwrap(), marker);
            let back = returned(&revision).unwrap();
            assert!(!is_marker(&back) && back > marker);
            assert_ne!(marker_of(&back).unwrap(), marker);
        }
    }
}
