//! Tests of keys, the key file, and names.

use super::*;

fn key(byte: u8) -> EncryptionKey {
    EncryptionKey::from_callback(move || Ok([byte; 32]))
}

#[test]
fn key_file_is_opened_by_its_key_only_and_damage_is_another_error() {
    let keyring = Keyring::new(&key(7)).unwrap();
    let bytes = keyring.encode().unwrap();
    let same = Keyring::decode(&bytes, &key(7)).unwrap();
    assert_eq!(same.seal_name(&[3; 32]), keyring.seal_name(&[3; 32]));
    assert_eq!(Keyring::decode(&bytes, &key(8)).unwrap_err().kind(), ErrorKind::WrongKey);
    let passphrase = EncryptionKey::from_passphrase("a passphrase").unwrap();
    assert_eq!(Keyring::decode(&bytes, &passphrase).unwrap_err().kind(), ErrorKind::WrongKey);
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Keyring::decode(&flipped, &key(7)).unwrap_err().kind(), ErrorKind::Corrupt, "bit {bit}");
    }
    for length in 0..bytes.len() {
        assert_eq!(Keyring::decode(&bytes[..length], &key(7)).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn forged_checksum_does_not_help() {
    let bytes = Keyring::new(&key(7)).unwrap().encode().unwrap();
    let end = bytes.len() - 4;
    for at in 16..end {
        let mut forged = bytes.clone();
        forged[at] ^= 1;
        let checksum = crc32c::crc32c(&forged[..end]);
        forged[end..].copy_from_slice(&checksum.to_be_bytes());
        assert!(Keyring::decode(&forged, &key(7)).is_err(), "byte {at}");
    }
}

#[test]
fn passphrase_opens_what_it_locked() {
    let passphrase = |text: &str| EncryptionKey::from_passphrase(text).unwrap();
    let bytes = Keyring::new(&passphrase("correct horse")).unwrap().encode().unwrap();
    assert!(Keyring::decode(&bytes, &passphrase("correct horse")).is_ok());
    assert_eq!(Keyring::decode(&bytes, &passphrase("wrong horse")).unwrap_err().kind(), ErrorKind::WrongKey);
    assert_eq!(Keyring::decode(&bytes, &key(7)).unwrap_err().kind(), ErrorKind::WrongKey);
    assert!(EncryptionKey::from_passphrase("").is_err());
}

#[test]
fn rekeying_keeps_data_keys_and_a_new_key_makes_others() {
    let keyring = Keyring::new(&key(7)).unwrap();
    let (place, salt) = (Place { kind: 1, position: 9 }, [5; SALT_BYTES]);
    let mut bytes = *b"plain text";
    let tag = keyring.data_key(1, Purpose::Run, [4, 0], &salt).unwrap().seal(place, b"context", &mut bytes);
    assert_ne!(&bytes, b"plain text");
    keyring.rewrap(&key(8)).unwrap();
    let rekeyed = Keyring::decode(&keyring.encode().unwrap(), &key(8)).unwrap();
    let opens = |keyring: &Keyring, number, purpose, numbers, salt, place, context: &[u8]| {
        let mut bytes = bytes;
        let key: Result<DataKey> = keyring.data_key(number, purpose, numbers, salt);
        key.is_ok_and(|key| key.open(place, context, &tag, &mut bytes) && &bytes == b"plain text")
    };
    assert!(opens(&rekeyed, 1, Purpose::Run, [4, 0], &salt, place, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Log, [4, 0], &salt, place, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [5, 0], &salt, place, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [4, 1], &salt, place, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [4, 0], &[6; SALT_BYTES], place, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [4, 0], &salt, Place { kind: 2, ..place }, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [4, 0], &salt, Place { position: 8, ..place }, b"context"));
    assert!(!opens(&rekeyed, 1, Purpose::Run, [4, 0], &salt, place, b"contexT"));
    rekeyed.add_key().unwrap();
    assert_eq!((rekeyed.active(), rekeyed.numbers()), (Some(2), vec![1, 2]));
    assert!(!opens(&rekeyed, 2, Purpose::Run, [4, 0], &salt, place, b"context"));
    rekeyed.keep_only_active();
    assert_eq!(rekeyed.numbers(), [2]);
    let reopened = Keyring::decode(&rekeyed.encode().unwrap(), &key(8)).unwrap();
    assert!(reopened.data_key(1, Purpose::Run, [4, 0], &salt).is_err());
}

#[test]
fn names_are_a_keyed_permutation() {
    let (keyring, other) = (Keyring::new(&key(7)).unwrap(), Keyring::new(&key(7)).unwrap());
    for byte in 0..50 {
        let digest = [byte; 32];
        let name = keyring.seal_name(&digest);
        assert_eq!(keyring.open_name(&name), digest);
        assert_ne!(name, digest);
        assert_ne!(name, other.seal_name(&digest));
        let mut near = digest;
        near[31] ^= 1;
        let near = keyring.seal_name(&near);
        assert!(near[..16] != name[..16] && near[16..] != name[16..]);
    }
}

#[test]
fn key_files_and_variables_are_read_and_keys_are_never_shown() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let text = EncryptionKey::generate().unwrap();
    std::fs::write(&path, &text).unwrap();
    let from_file = EncryptionKey::from_file(&path);
    let bytes = Keyring::new(&from_file).unwrap().encode().unwrap();
    let raw: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect();
    std::fs::write(&path, &raw).unwrap();
    Keyring::decode(&bytes, &from_file).unwrap();
    for nonsense in ["", "abc", &"x".repeat(64), &"a".repeat(65)] {
        std::fs::write(&path, nonsense).unwrap();
        assert_eq!(Keyring::decode(&bytes, &from_file).unwrap_err().kind(), ErrorKind::Invalid);
    }
    let missing = EncryptionKey::from_file(directory.path().join("missing"));
    assert!(Keyring::decode(&bytes, &missing).unwrap_err().message().contains("missing"));
    let unset = EncryptionKey::from_variable("STEMMA_TEST_UNSET_VARIABLE");
    assert!(Keyring::decode(&bytes, &unset).unwrap_err().message().contains("STEMMA_TEST_UNSET_VARIABLE"));
    let secret = EncryptionKey::from_passphrase("the secret").unwrap();
    assert!(!format!("{secret:?}").contains("the secret"));
    assert_eq!(format!("{:?}", Keyring::new(&secret).unwrap()), "Keyring");
}
