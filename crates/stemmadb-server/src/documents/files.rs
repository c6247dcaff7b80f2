//! Representation of attachments in a response: as stubs, with inline content, or in separate parts of a multipart
//! message.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use stemmadb::{Attachment, Branch, Revision};

/// How a document's attachments are represented.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileView {
    /// Include the content, not only stubs.
    pub(crate) content: bool,
    /// Include content only for attachments that were added after these revisions, which the client already has.
    pub(crate) since: Vec<Revision>,
    /// The content is sent in separate parts of a multipart message.
    pub(crate) follows: bool,
}

impl FileView {
    /// The generation up to which the client has the attachments of this branch; 0 if it has none.
    fn known_generation(&self, branch: Option<&Branch>) -> u32 {
        let known =
            self.since.iter().filter(|revision| branch.is_some_and(|branch| branch.revisions.contains(revision)));
        known.map(Revision::generation).max().unwrap_or(0)
    }

    /// Whether the content of this attachment is included.
    pub(crate) fn includes_content(&self, file: &Attachment, branch: Option<&Branch>) -> bool {
        self.content && file.generation > self.known_generation(branch)
    }
}

/// Formats an MD5 as CouchDB's attachment digests: `md5-` and base64.
pub(crate) fn format_md5_digest(md5: &[u8; 16]) -> String {
    format!("md5-{}", BASE64_STANDARD.encode(md5))
}
