//! DODB's storage layout: one file per object and one symbolic link per indexed value; and its in-memory modes.
//!
//! ```text
//! data/<key>                              the object as JSON
//! indices/by_name/<name>               -> ../../data/<key>
//! partitions/by_color/<color>/<key>    -> ../../../data/<key>
//! tags/by_keyword/<keyword>/<key>      -> ../../../data/<key>
//! ```
//!
//! Files are written under a temporary name and renamed. Nothing is flushed.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;
use crate::workload::Car;

/// The kind of value that cars are looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupKind {
    /// A unique name.
    Index,
    /// A color, shared by many cars.
    Partition,
    /// A keyword, of which a car has several.
    Tag,
}

/// The on-disk layout.
pub(super) struct Files {
    root: PathBuf,
}

/// The in-memory modes: keys by value and, in two modes, the cars.
#[derive(Default)]
pub(super) struct MemoryIndex {
    keys_by_value: HashMap<(u8, String), Vec<u64>>,
    cars: Option<HashMap<u64, Arc<Car>>>,
}

impl LookupKind {
    pub(super) const ALL: [LookupKind; 3] = [LookupKind::Index, LookupKind::Partition, LookupKind::Tag];

    pub(super) fn name(self) -> &'static str {
        match self {
            LookupKind::Index => "index",
            LookupKind::Partition => "partition",
            LookupKind::Tag => "tag",
        }
    }

    /// Returns the car's values of this kind.
    fn values(self, car: &Car) -> Vec<&str> {
        match self {
            LookupKind::Index => vec![&car.name],
            LookupKind::Partition => vec![&car.color],
            LookupKind::Tag => car.keywords.iter().map(String::as_str).collect(),
        }
    }

    fn directory(self) -> &'static str {
        match self {
            LookupKind::Index => "indices/by_name",
            LookupKind::Partition => "partitions/by_color",
            LookupKind::Tag => "tags/by_keyword",
        }
    }
}

fn file_name(key: u64) -> String {
    format!("{key:010}")
}

fn read(path: &Path) -> Result<Car> {
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

impl Files {
    /// Creates an empty layout.
    pub(super) fn create(root: &Path) -> Result<Self> {
        fs::create_dir_all(root.join("data"))?;
        for kind in LookupKind::ALL {
            fs::create_dir_all(root.join(kind.directory()))?;
        }
        Ok(Files { root: root.to_owned() })
    }

    /// Writes a car's file and links.
    pub(super) fn insert(&self, key: u64, car: &Car) -> Result<()> {
        let name = file_name(key);
        let path = self.root.join("data").join(&name);
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(car)?)?;
        fs::rename(&new, &path)?;
        for kind in LookupKind::ALL {
            for value in kind.values(car) {
                let link = self.root.join(kind.directory()).join(value);
                if kind == LookupKind::Index {
                    symlink(format!("../../data/{name}"), link)?;
                    continue;
                }
                fs::create_dir_all(&link)?;
                symlink(format!("../../../data/{name}"), link.join(&name))?;
            }
        }
        Ok(())
    }

    /// Finds cars by following links and reading files.
    pub(super) fn find(&self, kind: LookupKind, value: &str) -> Result<Vec<Car>> {
        let link = self.root.join(kind.directory()).join(value);
        if kind == LookupKind::Index {
            return Ok(vec![read(&link)?]);
        }
        fs::read_dir(link)?.map(|entry| read(&entry?.path())).collect()
    }
}

impl MemoryIndex {
    /// Creates an empty index; `with_cars` also keeps the cars in memory.
    pub(super) fn new(with_cars: bool) -> Self {
        MemoryIndex { keys_by_value: HashMap::new(), cars: with_cars.then(HashMap::new) }
    }

    pub(super) fn insert(&mut self, key: u64, car: &Car) {
        for kind in LookupKind::ALL {
            for value in kind.values(car) {
                self.keys_by_value.entry((kind as u8, value.to_owned())).or_default().push(key);
            }
        }
        if let Some(cars) = &mut self.cars {
            cars.insert(key, Arc::new(car.clone()));
        }
    }

    fn keys(&self, kind: LookupKind, value: &str) -> &[u64] {
        self.keys_by_value.get(&(kind as u8, value.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// Finds cars entirely in memory.
    pub(super) fn find(&self, kind: LookupKind, value: &str) -> Vec<Arc<Car>> {
        let Some(cars) = &self.cars else { return Vec::new() };
        self.keys(kind, value).iter().map(|key| cars[key].clone()).collect()
    }

    /// Finds keys in memory and reads the cars' files.
    pub(super) fn find_files(&self, files: &Files, kind: LookupKind, value: &str) -> Result<Vec<Car>> {
        self.keys(kind, value).iter().map(|key| read(&files.root.join("data").join(file_name(*key)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::ScratchDirectory;
    use crate::workload::{COLOR, KEYWORD};

    #[test]
    fn links_and_memory_find_the_same_cars() {
        let scratch = ScratchDirectory::new(None).unwrap();
        let files = Files::create(&scratch.fresh_path("files").unwrap()).unwrap();
        let (mut key_index, mut full_cache) = (MemoryIndex::new(false), MemoryIndex::new(true));
        let cars: Vec<Car> = (0..200).map(Car::new).collect();
        for (key, car) in cars.iter().enumerate() {
            files.insert(key as u64, car).unwrap();
            key_index.insert(key as u64, car);
            full_cache.insert(key as u64, car);
        }
        for (kind, value, count) in
            [(LookupKind::Index, "car-000123", 1), (LookupKind::Partition, COLOR, 8), (LookupKind::Tag, KEYWORD, 4)]
        {
            let mut read = files.find(kind, value).unwrap();
            read.sort_by(|one, other| one.name.cmp(&other.name));
            assert_eq!(read.len(), count);
            assert_eq!(key_index.find_files(&files, kind, value).unwrap(), read);
            let cached: Vec<Car> = full_cache.find(kind, value).iter().map(|car| Car::clone(car)).collect();
            assert_eq!(cached, read);
        }
        assert!(files.find(LookupKind::Index, "car-999999").is_err());
    }
}
