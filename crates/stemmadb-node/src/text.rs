//! JSON text of what is returned: V8 parses it three times faster than objects are built through Node-API.

use stemmadb::{Attachment, Change, Delta, DeltaEvent, Document, Object, Result, Value};

/// Integers beyond this are not exact as JavaScript's numbers.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
/// Every longer run of digits may be such an integer.
const SAFE_DIGITS: usize = 15;

/// The body of an attachment's stub, as CouchDB's documents have it.
fn stub(file: &Attachment, digest: String) -> Value {
    let mut stub = Object::new();
    stub.insert("content_type", file.content_type.as_str());
    stub.insert("revpos", u64::from(file.generation));
    stub.insert("digest", digest);
    stub.insert("length", file.length);
    stub.insert("stub", true);
    Value::Object(stub)
}

/// Appends a document: `_id`, `_rev`, then its attachments if it has some, then its fields.
pub(crate) fn write_document(document: &Document, out: &mut Vec<u8>) -> Result<()> {
    write_document_with(document, sha256, out)
}

/// The digest of an attachment, as every database has it.
pub(crate) fn sha256(file: &Attachment) -> String {
    format!("sha256-{}", file.digest)
}

/// As [`write_document`], with these digests of attachments.
pub(crate) fn write_document_with(
    document: &Document,
    digest: impl Fn(&Attachment) -> String,
    out: &mut Vec<u8>,
) -> Result<()> {
    out.extend_from_slice(b"{\"_id\":");
    Value::from(document.id().as_str()).write_json(out);
    out.extend_from_slice(b",\"_rev\":\"");
    out.extend_from_slice(document.revision().to_string().as_bytes());
    out.push(b'"');
    if document.is_deleted() {
        out.extend_from_slice(b",\"_deleted\":true");
    }
    let attachments = document.attachments()?;
    if !attachments.is_empty() {
        out.extend_from_slice(b",\"_attachments\":");
        let stubs: Object = attachments.iter().map(|file| (file.name.clone(), stub(file, digest(file)))).collect();
        Value::Object(stubs).write_json(out);
    }
    out.push(b',');
    if !document.write_json_fields(out)? {
        out.pop();
    }
    out.push(b'}');
    Ok(())
}

/// Appends `[a,b,c]`.
pub(crate) fn write_array<T>(
    items: impl IntoIterator<Item = T>,
    out: &mut Vec<u8>,
    mut write: impl FnMut(T, &mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    out.push(b'[');
    for (number, item) in items.into_iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        write(item, out)?;
    }
    out.push(b']');
    Ok(())
}

/// Appends a change.
pub(crate) fn write_change(change: &Change, out: &mut Vec<u8>) -> Result<()> {
    out.extend_from_slice(b"{\"sequence\":");
    Value::from(change.sequence.get()).write_json(out);
    out.extend_from_slice(b",\"id\":");
    Value::from(change.id.as_str()).write_json(out);
    out.extend_from_slice(format!(",\"revision\":\"{}\",\"deleted\":{}", change.revision, change.deleted).as_bytes());
    out.extend_from_slice(b",\"leaves\":");
    let leaves: Value = change.leaves.iter().map(|leaf| Value::from(leaf.to_string())).collect();
    leaves.write_json(out);
    if let Some(document) = &change.document {
        out.extend_from_slice(b",\"document\":");
        write_document(document, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Appends a delta of a live query.
pub(crate) fn write_delta(delta: &Delta, out: &mut Vec<u8>) -> Result<()> {
    let events = delta.events().collect::<Result<Vec<_>>>()?;
    let head = format!("{{\"sequence\":{},\"isFirst\":{}", delta.sequence().get(), delta.is_first());
    out.extend_from_slice(head.as_bytes());
    let added = events.iter().filter_map(|event| match event {
        DeltaEvent::Added(document) => Some(document),
        _ => None,
    });
    let changed = events.iter().filter_map(|event| match event {
        DeltaEvent::Changed(document) => Some(document),
        _ => None,
    });
    let removed = events.iter().filter_map(|event| match event {
        DeltaEvent::Removed { id, .. } => Some(Value::from(id.as_str())),
        _ => None,
    });
    out.extend_from_slice(b",\"added\":");
    write_array(added, out, write_document)?;
    out.extend_from_slice(b",\"changed\":");
    write_array(changed, out, write_document)?;
    out.extend_from_slice(b",\"removed\":");
    removed.collect::<Value>().write_json(out);
    out.push(b'}');
    Ok(())
}

/// Text that was written by this module, or by the library.
pub(crate) fn into_text(json: Vec<u8>) -> Result<String> {
    String::from_utf8(json).map_err(|_| stemmadb::Error::internal("JSON text is not UTF-8"))
}

/// A document's text.
pub(crate) fn document(document: &Document) -> Result<String> {
    let mut json = Vec::with_capacity(256);
    write_document(document, &mut json)?;
    into_text(json)
}

/// Replaces integers that JavaScript's numbers don't have by strings of the marker and their digits. Returns `None` if
/// there are none, as in nearly every text.
pub(crate) fn mark_large_integers(text: &str, marker: &str) -> Option<String> {
    let mut run = 0;
    let has_run = text.bytes().any(|byte| {
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        run > SAFE_DIGITS
    });
    if !has_run {
        return None;
    }
    let (mut marked, mut rest, mut found) = (String::with_capacity(text.len() + 64), text, false);
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        let (before, token_and_rest) = rest.split_at(start);
        marked.push_str(before);
        let end = match token_and_rest.starts_with('"') {
            true => string_end(token_and_rest),
            false => {
                let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
                token_and_rest.find(|c| !is_part(c)).unwrap_or(token_and_rest.len())
            }
        };
        let (token, after) = token_and_rest.split_at(end);
        if is_large_integer(token) {
            found = true;
            marked.extend(["\"", marker, token, "\""]);
        } else {
            marked.push_str(token);
        }
        rest = after;
    }
    marked.push_str(rest);
    found.then_some(marked)
}

fn is_large_integer(token: &str) -> bool {
    let digits = token.strip_prefix('-').unwrap_or(token);
    digits.len() > SAFE_DIGITS && digits.parse::<u64>().is_ok_and(|integer| integer > SAFE_INTEGER_MAX)
}

/// The length of the string at the front of a text, with its quotes.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
