//! Deleting what a target does not need any more: backups beyond those to keep, and files that no manifest lists.

use std::collections::HashSet;

use super::create::fenced;
use super::manifest::{self, Manifest, name_of};
use super::target::Target;
use crate::{ErrorKind, Result};

/// Which backups stay when a new one is complete.
#[derive(Debug, Clone, Default)]
pub(super) enum Keep {
    #[default]
    All,
    /// The newest ones, with the new one.
    Newest(usize),
    /// Those with these numbers, and the new one.
    These(HashSet<u64>),
}

impl Keep {
    /// Takes out of `older`, which is ascending, the backups that do not stay.
    fn take_surplus(&self, older: &mut Vec<u64>) -> Vec<u64> {
        match self {
            Keep::All => Vec::new(),
            Keep::Newest(count) => {
                let surplus = (older.len() + 1).saturating_sub((*count).max(1));
                older.drain(..surplus).collect()
            }
            Keep::These(numbers) => older.extract_if(.., |number| !numbers.contains(number)).collect(),
        }
    }
}

/// Deletes backups and files after `newest` was created. Keeps the backups of `keep`; with `supersedes`, also deletes
/// those that `newest` makes superfluous. `files` are those that the target had before `newest` was written:
/// only they are deleted, since those of another writer may not be listed yet. Returns the number of deleted backups.
///
/// # Errors
/// `Conflict` if another writer has made a newer backup: then `newest` is withdrawn, and nothing else is deleted.
pub(super) fn clean(
    target: &dyn Target,
    newest: &Manifest,
    keep: &Keep,
    supersedes: bool,
    files: &[String],
) -> Result<u64> {
    let numbers = manifest::numbers(target)?;
    if let Some(&newer) = numbers.last()
        && newer > newest.backup
    {
        target.delete(&name_of(newest.backup))?;
        return Err(fenced(target, newer));
    }
    let mut older: Vec<u64> = numbers.into_iter().filter(|&number| number < newest.backup).collect();
    let mut deleted = keep.take_surplus(&mut older);
    let has_unlisted = {
        let listed: HashSet<&str> = newest.files().map(|file| &*file.name).collect();
        files.iter().any(|file| !listed.contains(&**file))
    };
    if !has_unlisted && deleted.is_empty() && !supersedes {
        return Ok(0);
    }
    let mut listed: HashSet<String> = newest.files().map(|file| file.name.clone()).collect();
    let mut is_known = true;
    for number in older {
        match Manifest::read(target, number) {
            Ok(manifest) if supersedes && manifest.is_superseded_by(newest) => deleted.push(number),
            Ok(manifest) => listed.extend(manifest.files().map(|file| file.name.clone())),
            // What a damaged manifest lists is unknown.
            Err(error) if error.kind() == ErrorKind::Corrupt => is_known = false,
            Err(error) => return Err(error),
        }
    }
    for &number in &deleted {
        target.delete(&name_of(number))?;
    }
    // A manifest must not outlive its files.
    target.flush()?;
    if is_known {
        for file in files.iter().filter(|file| !listed.contains(&**file)) {
            target.delete(file)?;
        }
    }
    Ok(deleted.len() as u64)
}
