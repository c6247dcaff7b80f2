//! LMDB page reader that does not trust the page's content.
//!
//! Layout (little-endian, 64-bit), offsets from the start of the page:
//!
//! | at | bytes | field |
//! |---|---|---|
//! | 0 | 8 | the page's own number |
//! | 10 | 2 | flags: 1 branch, 2 leaf, 4 overflow, 8 meta |
//! | 12 | 2 | end of the node offsets (overflow: 4 bytes, number of pages) |
//! | 14 | 2 | start of the nodes, which fill the page to its end |
//! | 16 | 2 each | offset of each node, in key order |
//!
//! A node: data length or the child page's low 32 bits (4), flags or the child's high bits (2), key length (2), key,
//! data; at even offsets. A leaf node's flag 1 means that the data is the number of an overflow page, 2 that it is a
//! table's record.
//!
//! Invariant: no access is unchecked; for any bytes the result is a value or [`Damage`].

#[cfg(not(all(target_endian = "little", target_pointer_width = "64")))]
compile_error!("LMDB files are in the machine's own order; this reader supports only 64-bit little-endian machines");

/// Length of a page's header, before its node offsets or overflow data.
pub(super) const PAGE_HEADER_BYTES: usize = 16;
/// Root page number of an empty table.
pub(super) const NO_PAGE: u64 = u64::MAX;
/// Pages 0 and 1 are the meta pages.
pub(super) const META_PAGES: u64 = 2;
const NODE_HEADER_BYTES: usize = 8;
const ROOT_BYTES: usize = 48;
const DEPTH_MAX: u16 = 32;
const MAGIC: u32 = 0xBEEF_C0DE;
const VERSION: u32 = 1;
/// The free list has native integers as keys.
pub(super) const FREE_FLAGS: u16 = 0x08;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const NODE_OVERFLOW: u16 = 1;
const NODE_TABLE: u16 = 2;

/// A problem and the page it is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) page: u64,
    pub(super) what: &'static str,
}

/// Result of reading bytes that may be damaged.
pub(super) type Checked<T> = Result<T, Damage>;

/// A branch or leaf page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Page<'a> {
    bytes: &'a [u8],
    /// Offset of each node, in key order.
    offsets: &'a [[u8; 2]],
    number: u64,
    is_leaf: bool,
}

/// A stored row of a leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeafNode<'a> {
    pub(super) key: &'a [u8],
    pub(super) data: LeafData<'a>,
}

/// Location of a row's data.
#[derive(Debug, Clone, Copy)]
pub(super) enum LeafData<'a> {
    /// In the leaf.
    Inline(&'a [u8]),
    /// On consecutive overflow pages, starting with this one.
    Overflow { page: u64, len: usize },
    /// The record of a table, in the table of tables.
    Table(&'a [u8]),
}

impl<'a> Page<'a> {
    /// Parses the header of page `number`, whose content is `bytes`.
    #[inline]
    pub(super) fn parse(bytes: &'a [u8], number: u64) -> Checked<Self> {
        let damage = |what| Damage { page: number, what };
        let header = bytes.first_chunk::<PAGE_HEADER_BYTES>().ok_or(damage("it is too short"))?;
        if u64_at(header, 0) != Some(number) {
            return Err(damage("it has another page number"));
        }
        let is_leaf = match u16_at(header, 10) {
            Some(BRANCH) => false,
            Some(LEAF) => true,
            _ => return Err(damage("it is neither branch nor leaf")),
        };
        let offsets_end = usize::from(u16_at(header, 12).unwrap_or(0));
        let nodes_start = usize::from(u16_at(header, 14).unwrap_or(0));
        let (offsets, rest) = bytes.get(PAGE_HEADER_BYTES..offsets_end).unwrap_or_default().as_chunks();
        if offsets.is_empty() || !rest.is_empty() || offsets_end > nodes_start || nodes_start > bytes.len() {
            return Err(damage("its bounds are wrong"));
        }
        Ok(Page { bytes, offsets, number, is_leaf })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Number of nodes; at least one.
    pub(super) fn count(&self) -> usize {
        self.offsets.len()
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    pub(super) fn damage(&self, what: &'static str) -> Damage {
        Damage { page: self.number, what }
    }

    /// The key of node `index`. In a branch, the key of node 0 is meaningless: it stands for all keys below node 1's.
    #[inline]
    pub(super) fn key(&self, index: usize) -> Checked<&'a [u8]> {
        self.node(index).map(|node| node.key)
    }

    /// The child page of node `index` of a branch.
    #[inline]
    pub(super) fn child(&self, index: usize) -> Checked<u64> {
        let node = self.node(index)?;
        Ok(u64::from(node.low) | u64::from(node.flags) << 32)
    }

    /// The row of node `index` of a leaf.
    #[inline]
    pub(super) fn leaf_node(&self, index: usize) -> Checked<LeafNode<'a>> {
        let node = self.node(index)?;
        let len = node.low as usize;
        let data = match node.flags {
            0 => node.rest.get(..len).map(LeafData::Inline),
            NODE_OVERFLOW => u64_at(node.rest, 0).map(|page| LeafData::Overflow { page, len }),
            NODE_TABLE => node.rest.get(..len).map(LeafData::Table),
            _ => None,
        };
        let data = data.ok_or(self.damage("a row's data is out of bounds"))?;
        Ok(LeafNode { key: node.key, data })
    }

    /// The first node with a key not below `key`, or above it if `after`; `count()` if there is none. In a branch, node
    /// 0 is not compared.
    #[inline]
    pub(super) fn search(&self, key: &[u8], after: bool) -> Checked<usize> {
        let key_prefix = prefix(key);
        let (mut low, mut high) = (usize::from(!self.is_leaf), self.count());
        while low < high {
            let middle = (low + high) / 2;
            let found = self.key(middle)?;
            let order = prefix(found).cmp(&key_prefix).then_with(|| found.cmp(key));
            if order.is_lt() || (after && order.is_eq()) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Checks that the nodes fill the page exactly and that their keys ascend. Returns whether all rows of a leaf are
    /// stored inline. Costs a few ns per node.
    pub(super) fn check(&self) -> Checked<bool> {
        self.check_by(|previous, key| previous < key)
    }

    /// As `check`, with a custom key order.
    pub(super) fn check_by(&self, in_order: impl Fn(&[u8], &[u8]) -> bool) -> Checked<bool> {
        let nodes_start = usize::from(u16_at(self.bytes, 14).unwrap_or(0));
        let mut used_bytes: usize = 0;
        let mut is_inline = true;
        let mut previous: Option<&[u8]> = None;
        for index in 0..self.count() {
            let node = self.node(index)?;
            let data_bytes = match (self.is_leaf, node.flags) {
                (false, _) => 0,
                (true, NODE_OVERFLOW) => 8,
                (true, _) => node.low as usize,
            };
            is_inline &= !self.is_leaf || node.flags == 0;
            used_bytes += (NODE_HEADER_BYTES + node.key.len() + data_bytes).next_multiple_of(2);
            if self.is_leaf || index > 0 {
                if previous.is_some_and(|previous| !in_order(previous, node.key)) {
                    return Err(self.damage("its keys are out of order"));
                }
                previous = Some(node.key);
            }
        }
        let is_below = |offset: &[u8; 2]| usize::from(u16::from_le_bytes(*offset)) < nodes_start;
        if used_bytes + nodes_start != self.bytes.len() || self.offsets.iter().any(is_below) {
            return Err(self.damage("its rows don't fill it"));
        }
        if !self.is_leaf && self.count() < 2 {
            return Err(self.damage("it is a branch with one child"));
        }
        Ok(is_inline)
    }

    #[inline]
    fn node(&self, index: usize) -> Checked<Node<'a>> {
        self.try_node(index).ok_or(self.damage("a node is out of bounds"))
    }

    #[inline]
    fn try_node(&self, index: usize) -> Option<Node<'a>> {
        let at = usize::from(u16::from_le_bytes(*self.offsets.get(index)?));
        let (header, rest) = self.bytes.get(at..)?.split_first_chunk::<NODE_HEADER_BYTES>()?;
        let header = u64::from_le_bytes(*header);
        let (key, rest) = rest.split_at_checked((header >> 48) as usize)?;
        Some(Node { low: header as u32, flags: (header >> 32) as u16, key, rest })
    }
}

/// The first 8 bytes of a key as a number, padded with zeros: if two prefixes differ, they order the keys.
#[inline]
fn prefix(key: &[u8]) -> u64 {
    if let Some(first) = key.first_chunk() {
        return u64::from_be_bytes(*first);
    }
    let mut first = [0; 8];
    first[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(first)
}

struct Node<'a> {
    low: u32,
    flags: u16,
    key: &'a [u8],
    /// From the end of the key to the end of the page.
    rest: &'a [u8],
}

/// The number of overflow pages for `len` bytes of data.
pub(super) fn overflow_pages(len: usize, page_bytes: usize) -> u64 {
    (PAGE_HEADER_BYTES + len).div_ceil(page_bytes) as u64
}

/// Checks the header of the first of `pages` overflow pages.
pub(super) fn check_overflow(bytes: &[u8], number: u64, pages: u64) -> Checked<()> {
    let right = u64_at(bytes, 0) == Some(number)
        && u16_at(bytes, 10) == Some(OVERFLOW)
        && u32_at(bytes, 12).map(u64::from) == Some(pages);
    if right { Ok(()) } else { Err(Damage { page: number, what: "it is not the overflow page it should be" }) }
}

/// Record of a table: its root page and its counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) flags: u16,
    pub(super) depth: u16,
    pub(super) branch_pages: u64,
    pub(super) leaf_pages: u64,
    pub(super) overflow_pages: u64,
    pub(super) entries: u64,
    pub(super) page: u64,
}

impl Root {
    /// Parses a record of 48 bytes.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let root = Root {
            flags: u16_at(bytes, 4)?,
            depth: u16_at(bytes, 6)?,
            branch_pages: u64_at(bytes, 8)?,
            leaf_pages: u64_at(bytes, 16)?,
            overflow_pages: u64_at(bytes, 24)?,
            entries: u64_at(bytes, 32)?,
            page: u64_at(bytes, 40)?,
        };
        let is_empty = root.page == NO_PAGE;
        let is_sound = bytes.len() == ROOT_BYTES && root.depth <= DEPTH_MAX && is_empty == (root.depth == 0);
        is_sound.then_some(root)
    }

    /// Pages of all kinds.
    pub(super) fn pages(&self) -> u64 {
        self.branch_pages.saturating_add(self.leaf_pages).saturating_add(self.overflow_pages)
    }
}

/// Content of a meta page, written by each commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) page_bytes: usize,
    pub(super) free: Root,
    pub(super) main: Root,
    pub(super) last_page: u64,
    pub(super) transaction: u64,
}

impl Meta {
    /// Parses the meta page `number` (0 or 1).
    pub(super) fn parse(bytes: &[u8], number: u64) -> Checked<Self> {
        let damage = |what| Damage { page: number, what };
        let root = |at: usize| bytes.get(at..at + ROOT_BYTES).and_then(Root::parse);
        let version = u32_at(bytes, PAGE_HEADER_BYTES + 4);
        let meta = || {
            Some(Meta {
                page_bytes: u32_at(bytes, 40)? as usize,
                free: root(40)?,
                main: root(40 + ROOT_BYTES)?,
                last_page: u64_at(bytes, 40 + 2 * ROOT_BYTES)?,
                transaction: u64_at(bytes, 48 + 2 * ROOT_BYTES)?,
            })
        };
        if u32_at(bytes, PAGE_HEADER_BYTES) != Some(MAGIC) || u64_at(bytes, 0) != Some(number) {
            return Err(damage("it is not a head of a tree"));
        }
        if version != Some(VERSION) {
            return Err(damage("the head of the tree is of another version of the format"));
        }
        let is_sound = |meta: &Meta| meta.free.flags == FREE_FLAGS && meta.main.flags == 0;
        meta().filter(is_sound).ok_or(damage("the head of the tree is wrong"))
    }
}

#[inline]
fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|chunk| u16::from_le_bytes(*chunk))
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

#[inline]
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}
