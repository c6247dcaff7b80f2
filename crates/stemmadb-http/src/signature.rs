//! Signed requests: HTTP Message Signatures (RFC 9421) with Ed25519, and the digest of the body (RFC 9530).
//!
//! A signature covers method, host, path, query and the digest of the body, the time, and a nonce. Its key is named by
//! its public key in base64.

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Request, Uri};
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use sfv::{BareItem, Dictionary, FieldType, InnerList, Item, Key, ListEntry, Parser};
use sha2::{Digest, Sha256};
use stemmadb::{Error, Result};
use tokio::sync::mpsc;
use uuid::Uuid;

use crate::foundation::Body;

/// The header with the digest of the body.
pub const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");
/// The header that names what a signature covers.
pub const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");
/// The header with the signature.
pub const SIGNATURE: HeaderName = HeaderName::from_static("signature");

/// What each signature covers.
const COVERED: [&str; 4] = ["@method", "@authority", "@path", "@query"];
/// The name of our signature among those of a request.
const LABEL: &str = "stemma";
/// Streamed bodies up to this length are kept in memory until they are signed; longer ones are in a temporary file.
const MEMORY_BYTES_MAX: usize = 1 << 20;

/// A SHA-256 digest.
pub type ContentHash = [u8; 32];

/// A private Ed25519 key that signs the requests of a peer. The server knows its public key: see "Signed requests" in
/// the guide of the server.
///
/// ```
/// use stemmadb_http::SigningKey;
///
/// # fn main() -> stemmadb::Result<()> {
/// let key = SigningKey::generate()?;
/// let same = SigningKey::from_pem(&key.to_pem())?;
/// assert_eq!(key.public_key(), same.public_key());
/// # Ok(())
/// # }
/// ```
pub struct SigningKey {
    pair: Ed25519KeyPair,
    pkcs8: Vec<u8>,
}

impl SigningKey {
    /// Creates a key from random bytes of the system.
    ///
    /// # Errors
    /// `Internal` if the system has none.
    pub fn generate() -> Result<Self> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
            .map_err(|_| Error::internal("the system has no random bytes for a key"))?;
        Self::from_pkcs8(document.as_ref())
    }

    /// Reads a key in PKCS #8 and PEM, as [`SigningKey::to_pem`] and `openssl genpkey -algorithm ed25519` write it.
    ///
    /// # Errors
    /// `Invalid` if it is another text.
    pub fn from_pem(pem: &str) -> Result<Self> {
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| {
            Error::invalid(format!("the signing key can't be read: {error}"))
                .with_hint("a PEM file as `openssl genpkey -algorithm ed25519` writes it")
        })?;
        Self::from_pkcs8(der.secret_pkcs8_der())
    }

    fn from_pkcs8(pkcs8: &[u8]) -> Result<Self> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(pkcs8)
            .map_err(|error| Error::invalid(format!("the signing key is no Ed25519 key: {error}")))?;
        Ok(SigningKey { pair, pkcs8: pkcs8.to_vec() })
    }

    /// The key as PEM. Whoever has it can sign.
    pub fn to_pem(&self) -> String {
        let text = BASE64_STANDARD.encode(&self.pkcs8);
        let lines: Vec<&str> = (0..text.len()).step_by(64).map(|at| &text[at..text.len().min(at + 64)]).collect();
        format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", lines.join("\n"))
    }

    /// The public key, in base64, by which a server recognizes this key.
    pub fn public_key(&self) -> String {
        BASE64_STANDARD.encode(self.pair.public_key().as_ref())
    }

    /// Adds the headers of a signature to a request whose body has this hash. `created` is in seconds since 1970.
    ///
    /// # Errors
    /// `Invalid` if the URL has no host.
    #[doc(hidden)]
    pub fn sign(&self, parts: &mut Parts, body: Option<ContentHash>, created: u64, nonce: &str) -> Result<()> {
        let mut covered: Vec<&str> = COVERED.to_vec();
        if let Some(hash) = body {
            let digest = [(key("sha-256"), ListEntry::from(Item::new(hash.to_vec())))];
            parts.headers.insert(CONTENT_DIGEST, field(&digest.into_iter().collect::<Dictionary>())?);
            covered.push("content-digest");
        }
        let text = |text: &str| BareItem::String(sfv::String::from_string(text.to_owned()).unwrap_or_default());
        let created = i64::try_from(created).ok().and_then(|created| sfv::Integer::try_from(created).ok());
        let input = InnerList::with_params(
            covered.into_iter().map(|name| Item::new(text(name))).collect(),
            [
                (key("created"), BareItem::Integer(created.unwrap_or(sfv::Integer::MAX))),
                (key("nonce"), text(nonce)),
                (key("alg"), text("ed25519")),
                (key("keyid"), text(&self.public_key())),
            ]
            .into_iter()
            .collect(),
        );
        let base =
            signature_base(&input, parts).ok_or_else(|| Error::invalid("the URL of a signed request has a host"))?;
        let signature = self.pair.sign(base.as_bytes()).as_ref().to_vec();
        let one = |entry: ListEntry| [(key(LABEL), entry)].into_iter().collect::<Dictionary>();
        parts.headers.insert(SIGNATURE_INPUT, field(&one(input.into()))?);
        parts.headers.insert(SIGNATURE, field(&one(Item::new(signature).into()))?);
        Ok(())
    }
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SigningKey").field("public_key", &self.public_key()).finish_non_exhaustive()
    }
}

fn key(name: &'static str) -> Key {
    Key::from_string(name.to_owned()).unwrap_or_else(|(error, name)| unreachable!("{name}: {error}"))
}

fn field(dictionary: &Dictionary) -> Result<HeaderValue> {
    let text = dictionary.serialize().unwrap_or_default();
    HeaderValue::from_str(&text).map_err(|error| Error::internal(error.to_string()))
}

/// A signature that a request has, which was not verified yet.
#[derive(Debug)]
pub struct SentSignature {
    /// The public key, in base64.
    pub key_id: String,
    /// When it was made, in seconds since 1970.
    pub created: i64,
    /// When it ends to be valid, in seconds since 1970.
    pub expires: Option<i64>,
    /// The signature.
    pub signature: Vec<u8>,
    /// The digest of the body, if the signature covers it.
    pub content: Option<ContentHash>,
    base: String,
}

impl SentSignature {
    /// The signature of a request. `None` if it has none.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(parts: &Parts) -> Result<Option<Self>, &'static str> {
        let Some(inputs) = parts.headers.get(SIGNATURE_INPUT) else { return Ok(None) };
        let inputs: Dictionary = parse(inputs).ok_or("`Signature-Input` is malformed")?;
        let signatures = parts.headers.get(SIGNATURE).ok_or("`Signature` is missing")?;
        let signatures: Dictionary = parse(signatures).ok_or("`Signature` is malformed")?;
        let Some((label, ListEntry::InnerList(input))) = inputs.first() else {
            return Err("`Signature-Input` names nothing that is signed");
        };
        let signature = match signatures.get(label) {
            Some(ListEntry::Item(Item { bare_item: BareItem::ByteSequence(bytes), .. })) => bytes.clone(),
            _ => return Err("`Signature` lacks the signature that `Signature-Input` names"),
        };
        let text = |name| input.params.get(name).and_then(|value| value.as_string()).map(|text| text.as_str());
        let number = |name| input.params.get(name).and_then(|value| value.as_integer()).map(i64::from);
        if text("alg").is_some_and(|algorithm| algorithm != "ed25519") {
            return Err("the algorithm of the signature is not `ed25519`");
        }
        let is_covered = |name: &str| {
            let is_it = |item: &Item| {
                item.params.is_empty() && item.bare_item.as_string().is_some_and(|item| item.as_str() == name)
            };
            input.items.iter().any(is_it)
        };
        if !COVERED.iter().all(|name| is_covered(name)) {
            return Err("the signature does not cover `@method`, `@authority`, `@path` and `@query`");
        }
        let content = match is_covered("content-digest") {
            true => Some(content_hash(&parts.headers).ok_or("`Content-Digest` has no SHA-256")?),
            false => None,
        };
        Ok(Some(SentSignature {
            key_id: text("keyid").ok_or("the signature has no `keyid`, its public key")?.to_owned(),
            created: number("created").ok_or("the signature has no `created`, its time")?,
            expires: number("expires"),
            signature,
            content,
            base: signature_base(input, parts).ok_or("the signature covers something that the request lacks")?,
        }))
    }

    /// A signature that no key has made.
    pub fn for_tests(signature: Vec<u8>, created: i64) -> Self {
        let (key_id, base) = (String::new(), String::new());
        SentSignature { key_id, created, expires: None, signature, content: None, base }
    }

    /// Whether the key that the request names has signed it.
    pub fn is_genuine(&self) -> bool {
        let Some(public_key) = decode_public_key(&self.key_id) else { return false };
        UnparsedPublicKey::new(&ED25519, public_key).verify(self.base.as_bytes(), &self.signature).is_ok()
    }
}

/// The bytes of a public key in base64. `None` if it is none.
pub fn decode_public_key(text: &str) -> Option<[u8; 32]> {
    BASE64_STANDARD.decode(text).ok()?.try_into().ok()
}

fn parse<T: FieldType>(header: &HeaderValue) -> Option<T> {
    Parser::new(header.as_bytes()).parse().ok()
}

fn content_hash(headers: &HeaderMap) -> Option<ContentHash> {
    let digests: Dictionary = parse(headers.get(CONTENT_DIGEST)?)?;
    match digests.get("sha-256")? {
        ListEntry::Item(item) => item.bare_item.as_byte_sequence()?.try_into().ok(),
        ListEntry::InnerList(_) => None,
    }
}

/// The text that is signed. `None` if the request lacks a part that it covers, or one is covered twice or by a rule
/// that is not known here.
fn signature_base(input: &InnerList, parts: &Parts) -> Option<String> {
    let mut base = String::new();
    let mut names: Vec<&str> = Vec::new();
    for item in &input.items {
        let name = item.bare_item.as_string()?.as_str();
        if !item.params.is_empty() || names.contains(&name) {
            return None;
        }
        names.push(name);
        base.push_str(&format!("\"{name}\": {}\n", component(name, parts)?));
    }
    let parameters = vec![ListEntry::from(input.clone())].serialize()?;
    base.push_str(&format!("\"@signature-params\": {parameters}"));
    Some(base)
}

/// The value of a part of a request that a signature covers.
fn component(name: &str, parts: &Parts) -> Option<String> {
    Some(match name {
        "@method" => parts.method.as_str().to_owned(),
        "@authority" => authority(&parts.uri, &parts.headers)?,
        "@path" => Some(parts.uri.path()).filter(|path| !path.is_empty()).unwrap_or("/").to_owned(),
        "@query" => format!("?{}", parts.uri.query().unwrap_or_default()),
        name if name.starts_with('@') => return None,
        name => {
            let values = parts.headers.get_all(name).iter();
            let values = values.map(|value| value.to_str().map(str::trim)).collect::<Result<Vec<_>, _>>().ok()?;
            Some(values).filter(|values| !values.is_empty())?.join(", ")
        }
    })
}

/// The host that a request names, in lower case, without the port that its scheme has anyway.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let named = match headers.get(HOST) {
        Some(host) => host.to_str().ok()?,
        None => uri.authority()?.as_str(),
    };
    let default_port = match uri.scheme_str() {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => "",
    };
    Some(named.strip_suffix(default_port).unwrap_or(named).to_ascii_lowercase())
}

/// Adds the signature of `key` to a request.
pub(crate) async fn signed(key: &SigningKey, request: Request<Body>) -> Result<Request<Body>> {
    let (mut parts, body) = request.into_parts();
    let (hash, body) = hashed(body).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    key.sign(&mut parts, hash, now, &Uuid::new_v4().simple().to_string())?;
    Ok(Request::from_parts(parts, body))
}

/// Hashes a body. A streamed one is read, and the body that is returned has the same bytes.
async fn hashed(body: Body) -> Result<(Option<ContentHash>, Body)> {
    match body {
        Body::Full(None) => Ok((None, Body::Full(None))),
        Body::Full(Some(bytes)) => Ok((Some(Sha256::digest(&bytes).into()), Body::Full(Some(bytes)))),
        Body::Chunks { mut from, length } => {
            let (mut kept, mut hasher) = (tempfile::spooled_tempfile(MEMORY_BYTES_MAX), Sha256::new());
            let unavailable = |error: std::io::Error| Error::unavailable(format!("a body can't be kept: {error}"));
            while let Some(chunk) = from.recv().await {
                // The source of the body reports why it can't be read.
                let chunk = chunk.map_err(|error| Error::unavailable(error.to_string()))?;
                hasher.update(&chunk);
                kept.write_all(&chunk).map_err(unavailable)?;
            }
            kept.seek(SeekFrom::Start(0)).map_err(unavailable)?;
            let (sender, from) = mpsc::channel(4);
            tokio::task::spawn_blocking(move || {
                loop {
                    let mut chunk = vec![0; 64 << 10];
                    let read = kept.read(&mut chunk).map(|count| {
                        chunk.truncate(count);
                        Bytes::from(chunk)
                    });
                    let (is_end, is_failed) = (read.as_ref().is_ok_and(Bytes::is_empty), read.is_err());
                    if is_end || sender.blocking_send(read).is_err() || is_failed {
                        return;
                    }
                }
            });
            Ok((Some(hasher.finalize().into()), Body::Chunks { from, length }))
        }
        Body::Compressed { .. } => Err(Error::internal("a compressed body of a signed request")),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Method;

    use super::*;

    /// The private key of the test vectors of RFC 9421, B.1.4.
    const RFC_KEY: &str = "-----BEGIN PRIVATE KEY-----\n\
        MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n";

    fn request(method: Method, uri: &str, host: &str) -> Parts {
        let request = hyper::Request::builder().method(method).uri(uri).header(HOST, host);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn base_and_signature_are_those_of_the_standard() {
        // RFC 9421, B.2.6.
        let mut parts = request(Method::POST, "/foo?param=Value&Pet=dog", "example.com");
        parts.headers.insert("date", HeaderValue::from_static("Tue, 20 Apr 2021 02:07:55 GMT"));
        parts.headers.insert("content-type", HeaderValue::from_static("application/json"));
        parts.headers.insert("content-length", HeaderValue::from_static("18"));
        let input = concat!(
            r#"("date" "@method" "@path" "@authority" "content-type" "content-length")"#,
            r#";created=1618884473;keyid="test-key-ed25519""#
        );
        let list: sfv::List = Parser::new(input).parse().unwrap();
        let [ListEntry::InnerList(list)] = &*list else { panic!("an inner list") };
        let base = signature_base(list, &parts).unwrap();
        assert_eq!(
            base,
            format!(
                "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\"@method\": POST\n\"@path\": /foo\n\
                 \"@authority\": example.com\n\"content-type\": application/json\n\"content-length\": 18\n\
                 \"@signature-params\": {input}"
            )
        );
        let key = SigningKey::from_pem(RFC_KEY).unwrap();
        assert_eq!(key.public_key(), "JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=");
        assert_eq!(
            BASE64_STANDARD.encode(key.pair.sign(base.as_bytes()).as_ref()),
            "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
        );
    }

    #[test]
    fn signature_covers_every_part_of_a_request() {
        let key = SigningKey::generate().unwrap();
        let hash: ContentHash = Sha256::digest(b"{}").into();
        let sign = |uri: &str| {
            let mut parts = request(Method::POST, uri, "db.example:5984");
            key.sign(&mut parts, Some(hash), 1_618_884_473, "n-1").unwrap();
            parts
        };
        let signed = sign("/db/_bulk_docs?x=1");
        let sent = SentSignature::parse(&signed).unwrap().unwrap();
        assert!(sent.is_genuine());
        assert_eq!((sent.key_id, sent.created, sent.content), (key.public_key(), 1_618_884_473, Some(hash)));
        type Change = fn(&mut Parts);
        let changes: [(&str, Change); 6] = [
            ("method", |parts| parts.method = Method::PUT),
            ("path", |parts| parts.uri = "/dc/_bulk_docs?x=1".parse().unwrap()),
            ("query", |parts| parts.uri = "/db/_bulk_docs?x=2".parse().unwrap()),
            ("no query", |parts| parts.uri = "/db/_bulk_docs".parse().unwrap()),
            ("host", |parts| drop(parts.headers.insert(HOST, HeaderValue::from_static("other.example")))),
            ("digest", |parts| {
                let other = format!("sha-256=:{}:", BASE64_STANDARD.encode([7; 32]));
                parts.headers.insert(CONTENT_DIGEST, HeaderValue::from_str(&other).unwrap());
            }),
        ];
        for (what, change) in changes {
            let mut parts = sign("/db/_bulk_docs?x=1");
            change(&mut parts);
            assert!(!SentSignature::parse(&parts).unwrap().unwrap().is_genuine(), "{what}");
        }
        let mut parts = sign("/db");
        let input = parts.headers[SIGNATURE_INPUT].to_str().unwrap().replace(" \"@query\"", "");
        parts.headers.insert(SIGNATURE_INPUT, HeaderValue::from_str(&input).unwrap());
        assert!(SentSignature::parse(&parts).unwrap_err().contains("does not cover"));
    }

    #[tokio::test]
    async fn streamed_bodies_are_hashed_and_unchanged() {
        for byte_count in [0_usize, 10, 3 << 20] {
            let bytes: Vec<u8> = (0..byte_count).map(|at| (at % 251) as u8).collect();
            let (sender, from) = mpsc::channel(1);
            let chunks: Vec<Bytes> = bytes.chunks(100_000).map(Bytes::copy_from_slice).collect();
            tokio::spawn(async move {
                for chunk in chunks {
                    sender.send(Ok(chunk)).await.unwrap();
                }
            });
            let (hash, body) = hashed(Body::Chunks { from, length: Some(byte_count as u64) }).await.unwrap();
            assert_eq!(hash, Some(Sha256::digest(&bytes).into()));
            let Body::Chunks { mut from, .. } = body else { panic!("streamed") };
            let mut read = Vec::new();
            while let Some(chunk) = from.recv().await {
                read.extend_from_slice(&chunk.unwrap());
            }
            assert!(read == bytes);
        }
    }
}
