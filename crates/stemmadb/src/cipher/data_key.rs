//! Data keys: AES-256-GCM keys that are derived from a database key.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use zeroize::Zeroizing;

use super::{Place, Purpose, SALT_BYTES, TAG_BYTES};

/// A key of 256 bits, zeroed when it is dropped.
pub(super) type Secret = Zeroizing<[u8; 32]>;

/// A key that encrypts the contents of one file, or of a part of one.
pub(crate) struct DataKey(LessSafeKey);

impl DataKey {
    /// The data key for this purpose, for these numbers (of a file, of a part), and with this random number.
    pub(super) fn derive(secret: &Secret, purpose: Purpose, numbers: [u64; 2], salt: &[u8; SALT_BYTES]) -> Self {
        let [first, second] = numbers.map(u64::to_be_bytes);
        let context: [&[u8]; 4] = [purpose.label(), &first, &second, salt];
        let derived = Prk::new_less_safe(HKDF_SHA256, &**secret);
        let derived = derived.expand(&context, &AES_256_GCM).expect("the length is that of a key");
        DataKey(LessSafeKey::new(UnboundKey::from(derived)))
    }

    pub(super) fn new(secret: &Secret) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, &**secret).expect("the length is that of a key");
        DataKey(LessSafeKey::new(key))
    }

    /// Encrypts `bytes`, and authenticates them with `context`. The caller never encrypts anything else at this place.
    pub(crate) fn seal(&self, place: Place, context: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let sealed = self.0.seal_in_place_separate_tag(place.nonce(), Aad::from(context), bytes);
        let tag = sealed.expect("AES-GCM encrypts up to 64 GiB");
        tag.as_ref().try_into().expect("the length is that of a tag")
    }

    /// Decrypts `bytes`; returns whether they are what was encrypted at this place with this context. If not, the
    /// bytes are undefined.
    #[must_use]
    pub(crate) fn open(&self, place: Place, context: &[u8], tag: &[u8; TAG_BYTES], bytes: &mut [u8]) -> bool {
        let tag = Tag::from(*tag);
        self.0.open_in_place_separate_tag(place.nonce(), Aad::from(context), tag, bytes, 0..).is_ok()
    }
}

impl Place {
    fn nonce(self) -> Nonce {
        let mut nonce = [0; 12];
        nonce[0] = self.kind;
        nonce[4..].copy_from_slice(&self.position.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

/// The length of derived secrets.
struct SecretLength;

impl KeyType for SecretLength {
    fn len(&self) -> usize {
        32
    }
}

/// A secret that follows from another one, for this purpose.
pub(super) fn derive_secret(secret: &[u8; 32], salt: &[u8], label: &[u8]) -> Secret {
    let mut derived = Secret::default();
    let context = [label, salt];
    let prk = Prk::new_less_safe(HKDF_SHA256, secret);
    let expanded = prk.expand(&context, SecretLength);
    expanded.and_then(|okm| okm.fill(&mut *derived)).expect("the length is that of a secret");
    derived
}
