//! Checks of the two meta pages of a file before LMDB opens it: LMDB divides by the page size it finds there.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use super::page::{Checked, Damage, META_PAGES, Meta};
use super::{OPEN, damaged};
use crate::{Error, Result};

const PAGE_BYTES_MIN: usize = 512;
const PAGE_BYTES_MAX: usize = 32_768;
const UNWRITTEN_BYTES_MAX: u64 = 64 << 20;

/// Checks that `data.mdb` in `directory`, if it exists, is a tree with valid meta pages and a plausible length.
pub(super) fn check_file(directory: &Path) -> Result<()> {
    let mut file = match File::open(directory.join("data.mdb")) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(Error::io(OPEN, error)),
    };
    let file_bytes = file.metadata().map_err(|error| Error::io(OPEN, error))?.len();
    if file_bytes == 0 {
        return Ok(());
    }
    let mut head = Vec::new();
    let limit = META_PAGES * PAGE_BYTES_MAX as u64;
    file.by_ref().take(limit).read_to_end(&mut head).map_err(|error| Error::io(OPEN, error))?;
    let newest = newest_meta(&head).map_err(|damage| damaged(None, damage))?;
    check_last_page(&newest, file_bytes).map_err(|damage| damaged(None, damage))
}

/// LMDB never writes pages that it allocated and freed within one transaction, so a file may hold fewer pages than the
/// meta page counts, but only within limits.
pub(super) fn check_last_page(meta: &Meta, file_bytes: u64) -> Checked<()> {
    let needed_bytes = meta.last_page.saturating_mul(meta.page_bytes as u64);
    if needed_bytes <= file_bytes.saturating_mul(2).saturating_add(UNWRITTEN_BYTES_MAX) {
        return Ok(());
    }
    Err(Damage { page: meta.transaction % META_PAGES, what: "the file is far shorter than it says" })
}

fn newest_meta(head: &[u8]) -> Checked<Meta> {
    let first = Meta::parse(head, 0)?;
    if !(PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&first.page_bytes) || !first.page_bytes.is_power_of_two() {
        return Err(Damage { page: 0, what: "its page size is impossible" });
    }
    let second = Meta::parse(head.get(first.page_bytes..).unwrap_or_default(), 1)?;
    if first.page_bytes != second.page_bytes {
        return Err(Damage { page: 1, what: "the heads disagree about the page size" });
    }
    let (even, odd) = (first.transaction, second.transaction);
    // Each commit takes the next number and the meta page of its parity; a new file has 0 on both.
    if even.abs_diff(odd) != 1 && (even, odd) != (0, 0) || even % 2 != 0 || (odd % 2 != 1 && odd != 0) {
        return Err(Damage { page: 0, what: "the heads are not of two commits in a row" });
    }
    Ok(if first.transaction < second.transaction { second } else { first })
}
