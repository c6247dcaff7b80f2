//! Conflict rules: one result for documents that several replicas changed at the same time.
//!
//! The branches that are not deleted become one revision: a successor of the winning revision with the content that the
//! rule computes, or the winning revision itself if it has that content. The other branches get deletions.
//!
//! Invariants: revision ids depend only on the revisions and contents that are resolved, so that replicas which resolve
//! the same branches write the same revisions. The highest of all revisions is never deleted, so that replicas which
//! saw different branches can't delete all of them. The order of contents does not depend on revision ids, so that
//! results of different replicas become equal, after which no revision is written.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::database::Database;
use crate::document::{Attachment, Document, File, FileContent};
use crate::engine::Edit;
use crate::log::Blob;
use crate::read::{Branch, Snapshot};
use crate::revision::{DocumentId, Revision, Sequence};
use crate::value::{Object, Value, collate};
use crate::{Error, Result};

/// The function of a [`ConflictRule::Function`].
pub type ConflictFunction = Arc<dyn Fn(&Conflict) -> Result<Value> + Send + Sync>;

/// How a document is resolved that has several branches, because replicas changed it at the same time.
///
/// All replicas that resolve the same branches write the same revisions, so a database may be resolved on one replica,
/// or on all. A change wins against a deletion, whatever the rule.
///
/// ```
/// use stemmadb::Database;
/// use stemmadb::replication::ConflictRule;
///
/// # fn main() -> stemmadb::Result<()> {
/// let (phone, laptop) = (Database::in_memory(), Database::in_memory());
/// let first = phone.insert("solaris", &serde_json::json!({"year": 1961}))?;
/// phone.replicate_to(&laptop)?;
/// phone.replace("solaris", &first, &serde_json::json!({"year": 1961, "lent_to": "Ada"}))?;
/// laptop.replace("solaris", &first, &serde_json::json!({"year": 1961, "shelf": 4}))?;
/// phone.replicate_to(&laptop)?;
/// phone.replicate_from(&laptop)?;
///
/// let rule = ConflictRule::Merge { field: None };
/// rule.resolve_all(&phone, stemmadb::Sequence::ZERO)?;
/// rule.resolve_all(&laptop, stemmadb::Sequence::ZERO)?;
/// let [here, there] = [&phone, &laptop].map(|db| db.get("solaris").unwrap().unwrap());
/// assert_eq!(here.revision(), there.revision());
/// assert_eq!((here.get("lent_to")?, here.get("shelf")?), (Some("Ada".into()), Some(4.into())));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum ConflictRule {
    /// The branch with the greatest value of a field wins, such as the time of the change that the program stores. A
    /// branch without the field has the lowest; of branches with equal values, that with the greater content wins.
    LastWriter {
        /// The name of the field, at the top of the document.
        field: String,
    },
    /// Merges the changes since the last common revision, field by field, also within objects. If two branches changed
    /// a field differently, that with the greater value of `field` wins; if these are equal or it is not given, the
    /// greater value. A field that one branch removed and another one changed has the changed value.
    ///
    /// If the content of the common revision is not stored (it was compacted, or never replicated here), the fields of
    /// all branches are merged as if none had existed before, so a removed field comes back.
    Merge {
        /// The name of a field that orders the branches, as in [`ConflictRule::LastWriter`].
        field: Option<String>,
    },
    /// A function returns the content. It must depend on nothing but its argument. Files are merged as by
    /// [`ConflictRule::Merge`]. If replicas see different branches first, the function is called for its own results:
    /// these stop changing if the order and the repetition of branches make no difference to it.
    Function(ConflictFunction),
}

impl fmt::Debug for ConflictRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConflictRule::LastWriter { field } => f.debug_struct("LastWriter").field("field", field).finish(),
            ConflictRule::Merge { field } => f.debug_struct("Merge").field("field", field).finish(),
            ConflictRule::Function(_) => f.write_str("Function"),
        }
    }
}

/// The branches of a document that a [`ConflictRule`] resolves.
#[derive(Debug)]
#[non_exhaustive]
pub struct Conflict {
    /// The document.
    pub id: DocumentId,
    /// The newest revisions of the branches that are not deleted, the winner first; two or more.
    pub versions: Vec<Document>,
    /// The last revision that all of them descend from, if its content is stored.
    pub ancestor: Option<Document>,
}

/// What [`ConflictRule::resolve_all`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResolvedConflicts {
    /// The number of documents that were resolved.
    pub count: u64,
    /// All changes up to this sequence were examined.
    pub sequence: Sequence,
}

/// A file of a version, or of the result.
#[derive(Clone)]
struct VersionFile {
    attachment: Attachment,
    blob: Arc<Blob>,
}

/// The content of a version.
#[derive(Clone)]
struct Version {
    /// The value of the field that orders versions.
    order: Option<Value>,
    body: Value,
    files: Vec<VersionFile>,
}

impl Version {
    fn read(snapshot: &Snapshot, document: &Document, field: Option<&str>) -> Result<Option<Self>> {
        let body = document.value()?;
        let mut files = Vec::new();
        for attachment in document.attachments()? {
            // The revision was replaced since, and its files were swept: the feed lists its successor.
            let Some(blob) = snapshot.pin_content(&attachment)? else { return Ok(None) };
            files.push(VersionFile { attachment, blob: Arc::new(blob) });
        }
        let order = field.and_then(|field| body.get(field)).cloned();
        Ok(Some(Version { order, body, files }))
    }

    /// The bytes that identify the content: those of the body, then those of the files.
    fn content(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.body.canonical(&mut bytes);
        let mut files: Vec<&Attachment> = self.files.iter().map(|file| &file.attachment).collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        for Attachment { name, content_type, digest, .. } in files {
            // Not the MD5 digest, which not all replicas store.
            Value::from([Value::from(name.as_str()), content_type.as_str().into(), digest.to_string().into()])
                .canonical(&mut bytes);
        }
        bytes
    }
}

fn compare_orders(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => collate::compare(a, b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

impl ConflictRule {
    /// Resolves a document; returns whether it had a conflict.
    ///
    /// To resolve conflicts as they arrive, call it from a [trigger](Database::trigger).
    ///
    /// # Errors
    /// Those of [`ConflictRule::edits`] and of a write, such as `Invalid` if the result does not fit a schema.
    pub fn resolve(&self, database: &Database, id: &str) -> Result<bool> {
        let edits = self.edits(&database.snapshot()?, id)?;
        if edits.is_empty() {
            return Ok(false);
        }
        database.write(|transaction| edits.into_iter().try_for_each(|edit| transaction.edit(edit).map(|_| ())))?;
        Ok(true)
    }

    /// Resolves all documents that changed after `since`, except design documents. See [`ConflictRule`] for an example.
    ///
    /// Costs a read of the changes feed, and of the documents that have a conflict.
    ///
    /// # Errors
    /// As [`ConflictRule::resolve`]: earlier documents stay resolved.
    pub fn resolve_all(&self, database: &Database, since: Sequence) -> Result<ResolvedConflicts> {
        let changes = database.changes(since)?;
        let mut resolved = ResolvedConflicts { count: 0, sequence: changes.last_sequence() };
        for change in changes.run() {
            let change = change?;
            if change.leaves.len() > 1 && !change.id.is_design() && self.resolve(database, change.id.as_str())? {
                resolved.count += 1;
            }
        }
        Ok(resolved)
    }

    /// The edits that resolve a document; none if at most one of its branches is not deleted. Apply them in one
    /// transaction.
    ///
    /// # Errors
    /// The error of the function; `Corrupt` if the stored bytes are damaged.
    pub fn edits(&self, snapshot: &Snapshot, id: &str) -> Result<Vec<Edit>> {
        let branches = snapshot.revisions(id)?;
        let live: Vec<&Branch> = branches.iter().filter(|branch| !branch.deleted).collect();
        if live.len() < 2 {
            return Ok(Vec::new());
        }
        let mut versions = Vec::with_capacity(live.len());
        for branch in &live {
            let Some(document) = snapshot.get_leaf(id, &branch.revisions[0])? else { return Ok(Vec::new()) };
            versions.push(document);
        }
        let common = |revision: &&Revision| live[1..].iter().all(|branch| branch.revisions.contains(revision));
        let ancestor = match live[0].revisions.iter().find(common) {
            Some(revision) => snapshot.get_revision(id, revision)?,
            None => None,
        };
        let conflict = Conflict { id: DocumentId::new(id)?, versions, ancestor };
        self.edits_of(snapshot, &conflict)
    }

    fn edits_of(&self, snapshot: &Snapshot, conflict: &Conflict) -> Result<Vec<Edit>> {
        let field = match self {
            ConflictRule::LastWriter { field } => Some(field.as_str()),
            ConflictRule::Merge { field } => field.as_deref(),
            ConflictRule::Function(_) => None,
        };
        let mut versions = Vec::with_capacity(conflict.versions.len());
        for document in &conflict.versions {
            let Some(version) = Version::read(snapshot, document, field)? else { return Ok(Vec::new()) };
            versions.push(version);
        }
        let result = match self {
            ConflictRule::LastWriter { .. } => last_written(&versions),
            ConflictRule::Merge { .. } => merged(&versions, conflict.ancestor.as_ref())?,
            ConflictRule::Function(function) => {
                let body = function(conflict)?;
                if body.as_object().is_none() {
                    let reason = format!("a conflict function returns a document, not {}", body.kind());
                    return Err(Error::invalid(reason));
                }
                Version { body, ..merged(&versions, conflict.ancestor.as_ref())? }
            }
        };
        Ok(edits(conflict, &versions[0], result))
    }
}

/// A successor of the winner with the resulting content, unless the winner has it, and deletions of the others.
fn edits(conflict: &Conflict, winner: &Version, result: Version) -> Vec<Edit> {
    let mut edits = Vec::with_capacity(conflict.versions.len());
    let content = result.content();
    if content != winner.content() {
        let parent = *conflict.versions[0].revision();
        let revision = Revision::of_edit(Some(&parent), false, &content);
        let files = result.files.into_iter().map(|VersionFile { attachment, blob }| {
            let Attachment { name, content_type, generation, md5, .. } = attachment;
            File { name, content: FileContent::Stored { content_type, blob, md5, generation: Some(generation) } }
        });
        edits.push(Edit::Foreign {
            id: conflict.id.clone(),
            revisions: vec![revision, parent],
            deleted: false,
            body: result.body,
            files: files.collect(),
        });
    }
    let empty = Value::Object(Object::new());
    let mut content = Vec::new();
    empty.canonical(&mut content);
    for version in &conflict.versions[1..] {
        let parent = *version.revision();
        edits.push(Edit::Foreign {
            id: conflict.id.clone(),
            revisions: vec![Revision::of_edit(Some(&parent), true, &content), parent],
            deleted: true,
            body: empty.clone(),
            files: Vec::new(),
        });
    }
    edits
}

/// The version with the greatest value of the field, or of those the one with the greatest content.
fn last_written(versions: &[Version]) -> Version {
    let compare = |a: &&Version, b: &&Version| {
        compare_orders(a.order.as_ref(), b.order.as_ref()).then_with(|| a.content().cmp(&b.content()))
    };
    versions.iter().max_by(compare).unwrap_or(&versions[0]).clone()
}

/// The merged changes of all versions since their common ancestor.
fn merged(versions: &[Version], ancestor: Option<&Document>) -> Result<Version> {
    let base = ancestor.map(Document::value).transpose()?;
    let bodies: Vec<Candidate<'_>> =
        versions.iter().map(|version| (version.order.as_ref(), Some(&version.body))).collect();
    let body = merge(base.as_ref(), &bodies).unwrap_or_else(|| versions[0].body.clone());
    let base_files = ancestor.map(Document::attachments).transpose()?.unwrap_or_default();
    Ok(Version { order: None, body, files: merged_files(versions, &base_files) })
}

/// The value of a version at a path, and the version's order.
type Candidate<'v> = (Option<&'v Value>, Option<&'v Value>);

/// Merges the values that the versions have at a path; `None` is no value.
fn merge(base: Option<&Value>, candidates: &[Candidate<'_>]) -> Option<Value> {
    let changed: Vec<Candidate<'_>> = candidates.iter().copied().filter(|(_, value)| *value != base).collect();
    let Some(first) = changed.first() else { return base.cloned() };
    if changed.iter().all(|(_, value)| value == &first.1) {
        return first.1.cloned();
    }
    // A change wins against a removal.
    let present: Vec<(Option<&Value>, &Value)> =
        changed.iter().filter_map(|(order, value)| Some((*order, (*value)?))).collect();
    let objects: Option<Vec<&Object>> = present.iter().map(|(_, value)| value.as_object()).collect();
    let base_object = base.and_then(Value::as_object);
    match objects {
        Some(objects) if base.is_none() || base_object.is_some() => {
            let orders = present.iter().map(|(order, _)| *order);
            Some(merge_objects(base_object, &orders.zip(objects).collect::<Vec<_>>()))
        }
        _ => {
            let compare = |a: &&(Option<&Value>, &Value), b: &&(Option<&Value>, &Value)| {
                compare_orders(a.0, b.0).then_with(|| compare_values(a.1, b.1))
            };
            present.iter().max_by(compare).map(|(_, value)| (*value).clone())
        }
    }
}

/// The collation order, in which different values may be equal; these are ordered by their bytes.
fn compare_values(a: &Value, b: &Value) -> Ordering {
    let bytes = |value: &Value| {
        let mut bytes = Vec::new();
        value.canonical(&mut bytes);
        bytes
    };
    collate::compare(a, b).then_with(|| bytes(a).cmp(&bytes(b)))
}

fn merge_objects(base: Option<&Object>, versions: &[(Option<&Value>, &Object)]) -> Value {
    let mut merged = Object::new();
    // In the order of the ancestor, then by name: the order of fields is content, and must not depend on the versions'.
    let mut added: Vec<&str> = versions.iter().flat_map(|(_, object)| object.names()).collect();
    added.sort_unstable();
    added.dedup();
    let of_base: Vec<&str> = base.into_iter().flat_map(Object::names).collect();
    added.retain(|name| !of_base.contains(name));
    for name in of_base.into_iter().chain(added) {
        let candidates: Vec<Candidate<'_>> =
            versions.iter().map(|(order, object)| (*order, object.get(name))).collect();
        if let Some(value) = merge(base.and_then(|base| base.get(name)), &candidates) {
            merged.insert(name, value);
        }
    }
    Value::Object(merged)
}

/// The files of all versions: one that a version removed is removed unless another one changed it; of files that were
/// changed differently, that with the greater digest.
fn merged_files<'v>(versions: &'v [Version], base: &[Attachment]) -> Vec<VersionFile> {
    let mut names: Vec<&str> =
        versions.iter().flat_map(|version| &version.files).map(|file| file.attachment.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let identity = |file: &Attachment| (file.digest.to_string(), file.content_type.clone());
    let merged = names.into_iter().filter_map(|name| {
        let base = base.iter().find(|file| file.name == name).map(identity);
        let found = |version: &'v Version| version.files.iter().find(|file| file.attachment.name == name);
        let files: Vec<Option<&VersionFile>> = versions.iter().map(found).collect();
        let identity_of = |file: Option<&VersionFile>| file.map(|file| identity(&file.attachment));
        // Among equal contents the lowest generation, which is stored with the content.
        let generation = |file: Option<&VersionFile>| file.map_or(0, |file| file.attachment.generation);
        let compare = |a: &Option<&VersionFile>, b: &Option<&VersionFile>| {
            identity_of(*a).cmp(&identity_of(*b)).then_with(|| generation(*b).cmp(&generation(*a)))
        };
        let changed = files.iter().copied().filter(|file| identity_of(*file) != base).max_by(compare);
        changed.unwrap_or_else(|| files.iter().copied().flatten().next()).cloned()
    });
    merged.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &str) -> Value {
        Value::parse(json).unwrap()
    }

    fn three_way(base: Option<&str>, versions: &[&str]) -> String {
        let base = base.map(value);
        let versions: Vec<Value> = versions.iter().map(|json| value(json)).collect();
        let candidates: Vec<Candidate<'_>> =
            versions.iter().map(|version| (version.get("at"), Some(version))).collect();
        merge(base.as_ref(), &candidates).unwrap().to_json()
    }

    #[test]
    fn fields_are_merged_within_objects() {
        let base = r#"{"a": 1, "b": {"c": 2, "d": 3}, "e": [1]}"#;
        let merged = |versions: &[&str]| three_way(Some(base), versions);
        assert_eq!(
            merged(&[
                r#"{"a": 5, "b": {"c": 2, "d": 3}, "e": [1]}"#,
                r#"{"a": 1, "b": {"c": 7, "d": 3}, "e": [1], "f": 1}"#
            ]),
            r#"{"a":5,"b":{"c":7,"d":3},"e":[1],"f":1}"#
        );
        // A field that only one side removed is removed.
        assert_eq!(merged(&[r#"{"b": {"c": 2, "d": 3}, "e": [1]}"#, base]), r#"{"b":{"c":2,"d":3},"e":[1]}"#);
        // A changed value wins against a removal, and the greater one of two changed values.
        assert_eq!(
            merged(&[r#"{"a": 1, "e": [1]}"#, r#"{"a": 1, "b": {"c": 9, "d": 3}, "e": [1]}"#]),
            r#"{"a":1,"b":{"c":9,"d":3},"e":[1]}"#
        );
        assert_eq!(merged(&[r#"{"a": 3, "e": [2]}"#, r#"{"a": 4, "e": [1, 0]}"#]), r#"{"a":4,"e":[2]}"#);
    }

    #[test]
    fn the_later_version_wins_where_both_changed() {
        let versions = [r#"{"at": 2, "a": 1, "b": 1}"#, r#"{"at": 1, "a": 9, "c": 1}"#];
        assert_eq!(three_way(Some(r#"{"at": 0, "a": 0}"#), &versions), r#"{"at":2,"a":1,"b":1,"c":1}"#);
        // Without the ancestor, all fields count as changed.
        assert_eq!(three_way(None, &versions), r#"{"a":1,"at":2,"b":1,"c":1}"#);
    }

    #[test]
    fn merging_does_not_depend_on_the_order_of_versions() {
        let versions = [r#"{"a": 1, "b": {"x": 1}}"#, r#"{"a": 1.0, "c": 1}"#, r#"{"a": "z", "b": {"y": 2}}"#];
        let orders = [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 2, 1], [1, 0, 2]];
        let merged = orders.map(|order| value(&three_way(None, &order.map(|at| versions[at]))));
        assert!(merged.iter().all(|other| *other == merged[0]), "{merged:?}");
    }
}
