//! Files as they are shown: stubs, with their content, or following in other parts of a message.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use stemmadb::{Attachment, Branch, Revision};

/// How a document's files are shown.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileView {
    /// With their content.
    pub(crate) content: bool,
    /// Only the content of files that a peer who has these revisions lacks.
    pub(crate) since: Vec<Revision>,
    /// The content follows in other parts of the message.
    pub(crate) follows: bool,
}

impl FileView {
    /// The generation up to which the peer has a document's files; none if it has nothing of it.
    fn known_generation(&self, branch: Option<&Branch>) -> u32 {
        let known =
            self.since.iter().filter(|revision| branch.is_some_and(|branch| branch.revisions.contains(revision)));
        known.map(Revision::generation).max().unwrap_or(0)
    }

    /// Whether the content of a file is asked for.
    pub(crate) fn wants(&self, file: &Attachment, branch: Option<&Branch>) -> bool {
        self.content && file.generation > self.known_generation(branch)
    }
}

/// An MD5 as CouchDB writes digests.
pub(crate) fn md5_text(md5: &[u8; 16]) -> String {
    format!("md5-{}", BASE64_STANDARD.encode(md5))
}
