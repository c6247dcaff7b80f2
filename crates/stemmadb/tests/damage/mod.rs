//! Damage injection into the log of a closed database, shared by the tests of `check` and `salvage`.

use std::path::{Path, PathBuf};

use stemmadb::testing::Random;

const PAGE: u64 = 4096;

/// One kind of damage done to one file.
#[derive(Debug, Clone)]
#[allow(dead_code, reason = "the fields are used in messages only")]
pub(crate) enum Damage {
    /// One byte changed.
    Byte { file: PathBuf, offset: u64 },
    /// A page overwritten with zeros.
    Zeroed { file: PathBuf, page: u64 },
    /// A page overwritten with another one, as by a misdirected write.
    Duplicated { file: PathBuf, from: u64, to: u64 },
    /// The file truncated to this length.
    Cut { file: PathBuf, bytes: u64 },
    /// The file removed.
    Removed { file: PathBuf },
}

/// Number of kinds.
pub(crate) const KINDS: u64 = 5;

impl Damage {
    /// Does this kind of damage to significant bytes of the log; `None` if nothing would change.
    pub(crate) fn of_kind(kind: u64, random: &mut Random, database: &Path) -> Option<Damage> {
        let files = segments(database);
        let file = files.get(random.below(files.len() as u64) as usize)?.clone();
        let mut bytes = std::fs::read(&file).unwrap();
        let used = used(&bytes);
        if used == 0 {
            return None;
        }
        let before = bytes.clone();
        let page = |number: u64| (number * PAGE) as usize..((number + 1) * PAGE).min(used) as usize;
        let pages = used.div_ceil(PAGE);
        let damage = match kind {
            0 => {
                let offset = random.below(used);
                bytes[offset as usize] ^= 1 + random.below(255) as u8;
                Damage::Byte { file, offset }
            }
            1 => {
                let number = random.below(pages);
                bytes[page(number)].fill(0);
                Damage::Zeroed { file, page: number }
            }
            2 => {
                let (from, to) = (random.below(pages), random.below(pages));
                let copied = bytes[page(from)].to_vec();
                let count = copied.len().min(page(to).len());
                bytes[page(to).start..][..count].copy_from_slice(&copied[..count]);
                Damage::Duplicated { file, from, to }
            }
            3 => {
                let end = random.below(used);
                bytes.truncate(end as usize);
                Damage::Cut { file, bytes: end }
            }
            _ => {
                std::fs::remove_file(&file).unwrap();
                return Some(Damage::Removed { file });
            }
        };
        let file = match &damage {
            Damage::Byte { file, .. }
            | Damage::Zeroed { file, .. }
            | Damage::Duplicated { file, .. }
            | Damage::Cut { file, .. }
            | Damage::Removed { file } => file,
        };
        (bytes != before).then(|| std::fs::write(file, bytes).unwrap())?;
        Some(damage)
    }
}

/// Length up to the last non-zero byte.
fn used(bytes: &[u8]) -> u64 {
    bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
}

/// The files of the log, in order.
pub(crate) fn segments(database: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = database.join("log").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension() == Some("log".as_ref()));
    files.sort();
    files
}
