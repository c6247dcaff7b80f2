//! Tests of the path dictionary: numbers, names, limits and the stored form.

use super::*;

fn intern(paths: &Paths, text: &str) -> PathNumber {
    text.split('.').fold(PathNumber::ROOT, |parent, name| {
        let step = if name == "[]" { Step::Element } else { Step::Field(name) };
        paths.intern(parent, step).unwrap()
    })
}

#[test]
fn paths_get_dense_numbers_and_print_as_text() {
    let paths = Paths::new();
    let price = intern(&paths, "items.[].price");
    assert_eq!((price, paths.len()), (PathNumber(3), 4));
    assert_eq!(intern(&paths, "items.[].price"), price);
    assert_eq!(paths.text(price).unwrap(), "items[].price");
    assert_eq!(paths.text(intern(&paths, "[].[].x[]")).unwrap(), "[][].x\\[]");
    let dotted = paths.intern(PathNumber::ROOT, Step::Field(r"a.b\")).unwrap();
    assert_eq!(paths.text(dotted).unwrap(), r"a\.b\\");
    assert_eq!(paths.text(PathNumber::ROOT).unwrap(), "");
    assert_eq!(paths.text(PathNumber(99)), None);
}

#[test]
fn lookups_add_nothing() {
    let paths = Paths::new();
    let element = intern(&paths, "a.[]");
    assert_eq!(paths.lookup([Step::Field("a"), Step::Element]), Some(element));
    assert_eq!(paths.lookup([]), Some(PathNumber::ROOT));
    assert_eq!(paths.lookup([Step::Field("a"), Step::Field("b")]), None);
    assert_eq!(paths.child(PathNumber::ROOT, Step::Element), None);
    assert_eq!(paths.len(), 3);
}

#[test]
fn entries_restore_the_dictionary() {
    let paths = Paths::new();
    for text in ["a.b", "a.[].c", "d", "[]", "a..e"] {
        intern(&paths, text);
    }
    paths.intern(PathNumber::ROOT, Step::Index(300)).unwrap();
    let restored = Paths::new();
    for entry in paths.entries_since(0) {
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        assert_eq!(PathEntry::decode(entry.number, &bytes).unwrap(), entry);
        restored.restore(&entry).unwrap();
        restored.restore(&entry).unwrap();
    }
    assert_eq!(restored.entries_since(0), paths.entries_since(1));
    assert_eq!(paths.entries_since(5).len(), paths.len() - 5);
    assert_eq!(paths.entries_since(99), []);
    for text in ["a.b", "a.[].c", "d", "[]", "a..e"] {
        assert_eq!(intern(&restored, text), intern(&paths, text));
    }
}

#[test]
fn contradicting_entries_are_corrupt() {
    let paths = Paths::new();
    let entry = |number, parent, name: Option<&str>| PathEntry {
        number: PathNumber(number),
        parent: PathNumber(parent),
        step: name.map_or(OwnedStep::Element, |name| OwnedStep::Field(name.into())),
    };
    for bad in [entry(0, 0, None), entry(2, 0, None), entry(1, 1, None), entry(1, 7, Some("a"))] {
        assert_eq!(paths.restore(&bad).unwrap_err().kind(), crate::ErrorKind::Corrupt);
    }
    paths.restore(&entry(1, 0, Some("a"))).unwrap();
    assert!(paths.restore(&entry(1, 0, Some("b"))).is_err());
    assert!(paths.restore(&entry(2, 0, Some("a"))).is_err());
    for bad in [
        &[][..],
        &[0],
        &[0, 2],
        &[0, 0, 1],
        &[0, 1, 0xff],
        &[1, 2, 1],
        &[0, 2, 1, 0],
        &[0xf8, 0xff, 0xff, 0xff, 0xff, 0],
    ] {
        assert!(PathEntry::decode(PathNumber(1), bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_full_dictionary_adds_nothing_and_still_finds_paths() {
    let paths = Paths::new();
    let long = "x".repeat(TEXT_BYTES_MAX / 2);
    let first = paths.intern(PathNumber::ROOT, Step::Field(&long)).unwrap();
    assert!(paths.intern(first, Step::Field(&long)).is_some());
    assert_eq!(paths.intern(PathNumber::ROOT, Step::Field("y")), None);
    assert_eq!(paths.intern(PathNumber::ROOT, Step::Field(&long)), Some(first));
}

#[test]
fn concurrent_threads_get_the_same_numbers() {
    let paths = Paths::new();
    let names: Vec<String> = (0..500).map(|at| format!("field{at}")).collect();
    let numbers: Vec<Vec<_>> = std::thread::scope(|scope| {
        let work = || names.iter().map(|name| paths.intern(PathNumber::ROOT, Step::Field(name))).collect();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(numbers.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(paths.len(), 501);
}
