//! DODB's layout itself: a file for each object, a symbolic link for each value that it is found by. And what its modes keep in memory.
//!
//! ```text
//! data/<key>                              the object as JSON
//! indices/by_name/<name>               -> ../../data/<key>
//! partitions/by_color/<color>/<key>    -> ../../../data/<key>
//! tags/by_keyword/<keyword>/<key>      -> ../../../data/<key>
//! ```
//!
//! A file is written beside its place and renamed; nothing is flushed.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Result;
use crate::workload::Car;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The one car of a name.
    Index,
    /// All cars of a colour.
    Partition,
    /// All cars with a keyword.
    Tag,
}

/// The files and links.
pub(super) struct Files {
    root: PathBuf,
}

/// What is kept in memory: where each value's cars are and, in two of the modes, the cars.
#[derive(Default)]
pub(super) struct Remembered {
    places: HashMap<(u8, String), Vec<u64>>,
    cars: Option<HashMap<u64, Arc<Car>>>,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Index, Kind::Partition, Kind::Tag];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Index => "index",
            Kind::Partition => "partition",
            Kind::Tag => "tag",
        }
    }

    /// The values by which a car is found.
    fn values(self, car: &Car) -> Vec<&str> {
        match self {
            Kind::Index => vec![&car.name],
            Kind::Partition => vec![&car.color],
            Kind::Tag => car.keywords.iter().map(String::as_str).collect(),
        }
    }

    fn directory(self) -> &'static str {
        match self {
            Kind::Index => "indices/by_name",
            Kind::Partition => "partitions/by_color",
            Kind::Tag => "tags/by_keyword",
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
    /// An empty layout.
    pub(super) fn create(root: &Path) -> Result<Self> {
        fs::create_dir_all(root.join("data"))?;
        for kind in Kind::ALL {
            fs::create_dir_all(root.join(kind.directory()))?;
        }
        Ok(Files { root: root.to_owned() })
    }

    /// Writes a car's file and its links.
    pub(super) fn insert(&self, key: u64, car: &Car) -> Result<()> {
        let name = file_name(key);
        let path = self.root.join("data").join(&name);
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec(car)?)?;
        fs::rename(&new, &path)?;
        for kind in Kind::ALL {
            for value in kind.values(car) {
                let place = self.root.join(kind.directory()).join(value);
                if kind == Kind::Index {
                    symlink(format!("../../data/{name}"), place)?;
                    continue;
                }
                fs::create_dir_all(&place)?;
                symlink(format!("../../../data/{name}"), place.join(&name))?;
            }
        }
        Ok(())
    }

    /// The cars that are found by a value, read through the links.
    pub(super) fn find(&self, kind: Kind, value: &str) -> Result<Vec<Car>> {
        let place = self.root.join(kind.directory()).join(value);
        if kind == Kind::Index {
            return Ok(vec![read(&place)?]);
        }
        fs::read_dir(place)?.map(|entry| read(&entry?.path())).collect()
    }
}

impl Remembered {
    /// Nothing yet; `with_cars` says whether cars are to be kept beside their places.
    pub(super) fn new(with_cars: bool) -> Self {
        Remembered { places: HashMap::new(), cars: with_cars.then(HashMap::new) }
    }

    pub(super) fn insert(&mut self, key: u64, car: &Car) {
        for kind in Kind::ALL {
            for value in kind.values(car) {
                self.places.entry((kind as u8, value.to_owned())).or_default().push(key);
            }
        }
        if let Some(cars) = &mut self.cars {
            cars.insert(key, Arc::new(car.clone()));
        }
    }

    fn keys(&self, kind: Kind, value: &str) -> &[u64] {
        self.places.get(&(kind as u8, value.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// The cars that are found by a value, all of it from memory.
    pub(super) fn find(&self, kind: Kind, value: &str) -> Vec<Arc<Car>> {
        let Some(cars) = &self.cars else { return Vec::new() };
        self.keys(kind, value).iter().map(|key| cars[key].clone()).collect()
    }

    /// The cars that are found by a value: their places from memory, their files read.
    pub(super) fn find_files(&self, files: &Files, kind: Kind, value: &str) -> Result<Vec<Car>> {
        self.keys(kind, value).iter().map(|key| read(&files.root.join("data").join(file_name(*key)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Place;
    use crate::workload::{COLOR, KEYWORD};

    #[test]
    fn links_and_memory_find_the_same_cars() {
        let place = Place::new(None).unwrap();
        let files = Files::create(&place.fresh("files").unwrap()).unwrap();
        let (mut places, mut everything) = (Remembered::new(false), Remembered::new(true));
        let cars: Vec<Car> = (0..200).map(Car::new).collect();
        for (key, car) in cars.iter().enumerate() {
            files.insert(key as u64, car).unwrap();
            places.insert(key as u64, car);
            everything.insert(key as u64, car);
        }
        for (kind, value, count) in
            [(Kind::Index, "car-000123", 1), (Kind::Partition, COLOR, 8), (Kind::Tag, KEYWORD, 4)]
        {
            let mut read = files.find(kind, value).unwrap();
            read.sort_by(|one, other| one.name.cmp(&other.name));
            assert_eq!(read.len(), count);
            assert_eq!(places.find_files(&files, kind, value).unwrap(), read);
            let kept: Vec<Car> = everything.find(kind, value).iter().map(|car| Car::clone(car)).collect();
            assert_eq!(kept, read);
        }
        assert!(files.find(Kind::Index, "car-999999").is_err());
    }
}
