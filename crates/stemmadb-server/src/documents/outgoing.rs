//! Printing of documents as CouchDB's JSON, directly from the packed record without building a value tree.

use std::io::Read;

use base64::prelude::BASE64_STANDARD;
use base64::write::EncoderWriter;
use stemmadb::{Attachment, Branch, Document, Revision, Snapshot};

use super::files::{FileView, format_md5_digest};
use super::replication_state::print_state;
use crate::directory::ServedDatabase;
use crate::error::{Failure, Result};
use crate::http::write_string;

/// Which metadata of a document a response includes, besides its body.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShowOptions {
    /// `_revisions`.
    pub(crate) revs: bool,
    /// `_revs_info`.
    pub(crate) revs_info: bool,
    /// `_conflicts`.
    pub(crate) conflicts: bool,
    /// `_deleted_conflicts`.
    pub(crate) deleted_conflicts: bool,
    /// `_local_seq`.
    pub(crate) local_seq: bool,
    pub(crate) files: FileView,
}

impl ShowOptions {
    /// Without what lists other branches of the document.
    pub(crate) fn without_branches(&self) -> Self {
        ShowOptions { conflicts: false, deleted_conflicts: false, ..self.clone() }
    }

    fn needs_branches(&self) -> bool {
        self.revs || self.revs_info || self.conflicts || self.deleted_conflicts || !self.files.since.is_empty()
    }

    /// Whether the output may change without a new revision, so that a revision-based ETag would be wrong.
    pub(crate) fn is_volatile(&self) -> bool {
        self.revs_info || self.conflicts || self.deleted_conflicts
    }
}

/// Prints documents of one snapshot as JSON.
pub(crate) struct DocumentPrinter<'a> {
    pub(crate) served: &'a ServedDatabase,
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) show: &'a ShowOptions,
}

impl DocumentPrinter<'_> {
    /// Appends the document as JSON.
    pub(crate) fn print(&self, document: &Document, out: &mut Vec<u8>) -> Result<()> {
        let branches = match self.show.needs_branches() {
            true => self.snapshot.revisions(document.id().as_str())?,
            false => Vec::new(),
        };
        self.print_with_branches(document, &branches, out)
    }

    /// As [`DocumentPrinter::print`], if the caller has read the document's branches already.
    pub(crate) fn print_with_branches(
        &self,
        document: &Document,
        branches: &[Branch],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        print_head(document, out)?;
        let branch = branches.iter().find(|branch| branch.revisions.contains(document.revision()));
        self.print_files(document, branch, out)?;
        self.print_revisions(document, branch, branches, out)?;
        print_state(self.served, document, out)?;
        out.push(b'}');
        Ok(())
    }

    fn print_revisions(
        &self,
        document: &Document,
        branch: Option<&Branch>,
        branches: &[Branch],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let own = [*document.revision()];
        let path = branch.map_or(&own[..], |branch| branch.path_from(document.revision()));
        if self.show.revs {
            out.extend_from_slice(b",\"_revisions\":{\"start\":");
            push(out, document.revision().generation());
            out.extend_from_slice(b",\"ids\":");
            list(out, path, |out, revision| push(out, hash_text(revision)));
            out.push(b'}');
        }
        if self.show.revs_info {
            out.extend_from_slice(b",\"_revs_info\":[");
            let leaf = branch.and_then(|branch| branch.revisions.first());
            let stored = match leaf {
                Some(leaf) => self.snapshot.stored_ancestors(document.id().as_str(), leaf)?,
                None => Vec::new(),
            };
            for (at, revision) in path.iter().enumerate() {
                let own = (at == 0).then(|| document.is_deleted());
                let older = || stored.iter().find(|(stored, _)| stored == revision).map(|(_, deleted)| *deleted);
                let status = match own.or_else(older) {
                    Some(true) => "deleted",
                    Some(false) => "available",
                    None => "missing",
                };
                let comma = if at == 0 { "" } else { "," };
                push(out, format_args!("{comma}{{\"rev\":\"{revision}\",\"status\":\"{status}\"}}"));
            }
            out.push(b']');
        }
        for (is_requested, name, deleted) in
            [(self.show.conflicts, "_conflicts", false), (self.show.deleted_conflicts, "_deleted_conflicts", true)]
        {
            let others: Vec<Revision> = branches
                .iter()
                .filter(|branch| is_requested && branch.deleted == deleted)
                .filter_map(|branch| branch.revisions.first().copied())
                .filter(|revision| revision != document.revision())
                .collect();
            if !others.is_empty() {
                push(out, format_args!(",\"{name}\":"));
                list(out, &others, |out, revision| push(out, revision));
            }
        }
        if self.show.local_seq {
            push(out, format_args!(",\"_local_seq\":{}", document.sequence()));
        }
        Ok(())
    }

    fn print_files(&self, document: &Document, branch: Option<&Branch>, out: &mut Vec<u8>) -> Result<()> {
        let files = document.attachments()?;
        if files.is_empty() {
            return Ok(());
        }
        out.extend_from_slice(b",\"_attachments\":{");
        for (at, file) in files.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            write_string(out, &file.name);
            out.extend_from_slice(b":{\"content_type\":");
            write_string(out, &file.content_type);
            let digest = format_md5_digest(&self.served.md5_of(self.snapshot, document, file)?);
            push(out, format_args!(",\"revpos\":{},\"digest\":\"{digest}\"", file.generation));
            match (self.show.files.includes_content(file, branch), self.show.files.follows) {
                (false, _) => push(out, format_args!(",\"length\":{},\"stub\":true}}", file.length)),
                (true, true) => push(out, format_args!(",\"length\":{},\"follows\":true}}", file.length)),
                (true, false) => {
                    out.extend_from_slice(b",\"data\":\"");
                    self.print_content(document, file, out)?;
                    out.extend_from_slice(b"\"}");
                }
            }
        }
        out.push(b'}');
        Ok(())
    }

    fn print_content(&self, document: &Document, file: &Attachment, out: &mut Vec<u8>) -> Result<()> {
        let mut content = self
            .snapshot
            .open_attachment(document, &file.name)?
            .ok_or_else(|| Failure::internal("an attachment of the document is missing"))?;
        let failed = |error: std::io::Error| Failure::internal(format!("an attachment can't be read: {error}"));
        let mut encoder = EncoderWriter::new(out, &BASE64_STANDARD);
        let mut chunk = vec![0; 48 << 10];
        loop {
            let count = content.read(&mut chunk).map_err(failed)?;
            if count == 0 {
                break;
            }
            std::io::Write::write_all(&mut encoder, &chunk[..count]).map_err(failed)?;
        }
        encoder.finish().map_err(failed)?;
        Ok(())
    }
}

/// Appends the beginning of a document's JSON: its id and revision, whether it is deleted, and its own fields.
fn print_head(document: &Document, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"_id\":");
    write_string(out, document.id().as_str());
    out.extend_from_slice(b",\"_rev\":\"");
    push(out, document.revision());
    out.push(b'"');
    if document.is_deleted() {
        out.extend_from_slice(b",\"_deleted\":true");
    }
    let body_start = out.len();
    out.push(b',');
    if !document.write_json_fields(out)? {
        out.truncate(body_start);
    }
    Ok(())
}

/// Appends a document of any database as JSON, with stubs of its files. The digest of a file that was stored without an
/// MD5 is left out.
pub(crate) fn print_document(document: &Document, out: &mut Vec<u8>) -> Result<()> {
    print_head(document, out)?;
    for (at, file) in document.attachments()?.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b",\"_attachments\":{" } else { b"," });
        write_string(out, &file.name);
        out.extend_from_slice(b":{\"content_type\":");
        write_string(out, &file.content_type);
        if let Some(md5) = &file.md5 {
            push(out, format_args!(",\"digest\":\"{}\"", format_md5_digest(md5)));
        }
        push(out, format_args!(",\"revpos\":{},\"length\":{},\"stub\":true}}", file.generation, file.length));
    }
    if !document.attachments()?.is_empty() {
        out.push(b'}');
    }
    out.push(b'}');
    Ok(())
}

fn push(out: &mut Vec<u8>, displayed: impl std::fmt::Display) {
    // Writing to memory can't fail.
    std::io::Write::write_fmt(out, format_args!("{displayed}")).ok();
}

/// Appends a JSON array of strings that need no escaping.
fn list<T>(out: &mut Vec<u8>, entries: &[T], each: impl Fn(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (at, entry) in entries.iter().enumerate() {
        out.extend_from_slice(if at == 0 { b"\"" } else { b",\"" });
        each(out, entry);
        out.push(b'"');
    }
    out.push(b']');
}

/// The hash of a revision, without its generation.
fn hash_text(revision: &Revision) -> String {
    let text = revision.to_string();
    text.split_once('-').map_or_else(String::new, |(_, hash)| hash.to_owned())
}
