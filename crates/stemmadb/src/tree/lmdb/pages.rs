//! Pages of one committed state, pinned and mapped, for reading without LMDB.
//!
//! LMDB follows any page number it finds; a flipped bit can lead it beyond the file, which kills the process. LMDB is
//! therefore used for writing and, through a read transaction, for pinning a state; all reads go through `page.rs`,
//! which checks every step.
//!
//! Concurrency: pinned pages never change, so any thread may read them. The read transaction is only held until it is
//! dropped.

use std::sync::Arc;

use heed::{Env, RoTxn, WithoutTls};

use super::error::tree_error;
use super::head::check_last_page;
use super::map::Map;
use super::page::PAGE_HEADER_BYTES;
use super::page::{Checked, Damage, LeafData, META_PAGES, Meta, Page, check_overflow, overflow_pages};
use super::{READ, damaged, verify};
use crate::Result;
use crate::sync::Mutex;

/// The mapped pages of one committed state.
pub(super) struct Pages {
    meta: Meta,
    /// Number of complete pages in the file. May be less than the meta page counts, as LMDB never writes pages that it
    /// allocated and freed within one transaction. Accessing a mapped page beyond the end of the file kills the
    /// process.
    held_pages: u64,
    map: Arc<Map>,
    /// One bit per page, set if this state does not use it. The content of such a page is valid but outdated: without
    /// this check, a wrong page number that leads there would go undetected.
    free: Vec<u64>,
    /// Keeps LMDB from writing to the pages of this state, and the environment open.
    _pin: Mutex<RoTxn<'static, WithoutTls>>,
}

impl Pages {
    /// Pins the newest state. The caller excludes writers until this returns, because the second commit after a state
    /// overwrites its meta page. Verifies what LMDB reads on its own, the table of tables and the free list, at the
    /// cost of reading that list.
    pub(super) fn pin(env: &Env<WithoutTls>, map: &Arc<Map>) -> Result<Self> {
        let pin = env.clone().static_read_txn().map_err(|error| tree_error(READ, error))?;
        let file_bytes = env.real_disk_size().map_err(|error| tree_error(READ, error))?;
        let page_bytes = env.unnamed_database_stat().page_size as usize;
        let transaction = pin.id() as u64;
        let number = transaction % META_PAGES;
        let meta = if file_bytes < META_PAGES * page_bytes as u64 {
            Err(Damage { page: number, what: "the file is too short" })
        } else {
            Meta::parse(meta_page(map, number, page_bytes), number)
        };
        let meta = meta.map_err(|damage| damaged(None, damage))?;
        let held_pages = file_bytes / page_bytes as u64;
        let mut pages = Pages { meta, held_pages, map: map.clone(), free: Vec::new(), _pin: Mutex::new(pin) };
        let checked = pages.check_meta(page_bytes, transaction);
        let checked = checked.and_then(|()| check_last_page(&pages.meta, file_bytes));
        pages.free = checked.and_then(|()| verify::free_pages(&pages)).map_err(|damage| damaged(None, damage))?;
        Ok(pages)
    }

    fn check_meta(&self, page_bytes: usize, transaction: u64) -> Checked<()> {
        let damage = |what| Damage { page: transaction % META_PAGES, what };
        if self.meta.page_bytes != page_bytes {
            return Err(damage("its page size is wrong"));
        }
        if self.meta.transaction != transaction {
            return Err(damage("it is not the head of the newest state"));
        }
        Ok(())
    }

    pub(super) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The branch or leaf with this number.
    #[inline]
    pub(super) fn page(&self, number: u64) -> Checked<Page<'_>> {
        Page::parse(self.bytes(number, 1)?, number)
    }

    /// A row's data, from its leaf or its overflow pages.
    #[inline]
    pub(super) fn data<'a>(&'a self, data: LeafData<'a>) -> Checked<&'a [u8]> {
        match data {
            LeafData::Inline(data) | LeafData::Table(data) => Ok(data),
            LeafData::Overflow { page, len } => self.overflow(page, len),
        }
    }

    fn overflow(&self, number: u64, len: usize) -> Checked<&[u8]> {
        let pages = overflow_pages(len, self.meta.page_bytes);
        let bytes = self.bytes(number, pages)?;
        check_overflow(bytes, number, pages)?;
        Ok(&bytes[PAGE_HEADER_BYTES..][..len])
    }

    #[expect(unsafe_code, reason = "mapped pages are read as slices")]
    #[inline]
    fn bytes(&self, number: u64, count: u64) -> Checked<&[u8]> {
        let damage = Damage { page: number, what: "there is no such page" };
        let end = number.checked_add(count);
        if number < META_PAGES || end.is_none_or(|end| end > self.held_pages || end > self.meta.last_page + 1) {
            return Err(damage);
        }
        if self.free.get((number / 64) as usize).is_some_and(|word| word >> (number % 64) & 1 == 1) {
            return Err(Damage { page: number, what: "it is used, and free" });
        }
        let page_bytes = self.meta.page_bytes;
        // SAFETY: the file contains all these pages and never shrinks while it is open. LMDB writes only to pages that
        // no pinned state uses, and this state is pinned. In a damaged file, a wrong page number can name a page that
        // LMDB reuses, whose bytes may change while they are read. Values taken from a page are therefore checked after
        // copying, and a returned row may at worst contain garbage from the file.
        let bytes = unsafe { self.map.bytes(number as usize * page_bytes, count as usize * page_bytes) };
        bytes.ok_or(damage)
    }
}

/// The meta page `number` (0 or 1) of a file that is long enough.
#[expect(unsafe_code, reason = "mapped pages are read as slices")]
fn meta_page(map: &Map, number: u64, page_bytes: usize) -> &[u8] {
    // SAFETY: the caller checked that the file contains both meta pages; LMDB writes to them only during commits, which
    // `pin`'s caller excludes.
    unsafe { map.bytes(number as usize * page_bytes, page_bytes) }.unwrap_or_default()
}
