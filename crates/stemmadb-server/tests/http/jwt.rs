//! JSON Web Tokens: trusted keys, algorithms bound to keys, and expiration.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rsa::RsaPrivateKey;
use rsa::pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding};
use rsa::rand_core::OsRng;
use serde_json::{Value, json};
use stemmadb_server::{JwtAlgorithm, JwtKey};

use crate::auth::prepare;
use crate::client::TestServer;

pub(crate) const SECRET: &[u8] = b"a secret of at least thirty-two bytes";

pub(crate) fn token(claims: &Value, algorithm: jsonwebtoken::Algorithm, id: Option<&str>, secret: &[u8]) -> String {
    let header = jsonwebtoken::Header { kid: id.map(str::to_owned), ..jsonwebtoken::Header::new(algorithm) };
    jsonwebtoken::encode(&header, claims, &jsonwebtoken::EncodingKey::from_secret(secret)).unwrap()
}

#[test]
fn jwt_requires_known_key_algorithm_and_expiration() {
    let server = TestServer::with(|mut config| {
        let key = |id: Option<&str>, key: &[u8]| JwtKey {
            id: id.map(str::to_owned),
            algorithm: JwtAlgorithm::Hs256,
            key: key.to_vec(),
        };
        config.jwt_keys = vec![key(None, SECRET), key(Some("k"), &[7; 40])];
        config
    });
    prepare(&server);
    use jsonwebtoken::Algorithm::{HS256, HS512};
    let status =
        |token: &str| server.send("GET", "/db/d", &[("Authorization", &format!("Bearer {token}"))], b"").status;
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64});
    assert_eq!(status(&token(&claims, HS256, None, SECRET)), 200);
    assert_eq!(status(&token(&claims, HS256, Some("k"), &[7; 40])), 200);
    let staff = json!({"sub": "robot", "exp": 4_000_000_000_u64, "_couchdb.roles": ["staff"]});
    assert_eq!(status(&token(&staff, HS256, None, SECRET)), 200);
    assert_eq!(status(&token(&json!({"sub": "eve", "exp": 4_000_000_000_u64}), HS256, None, SECRET)), 403);
    let without = |text: &str| text.rsplit_once('.').unwrap().0.to_owned() + ".";
    let none = {
        use base64::Engine;
        let encode = |value: Value| base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        format!("{}.{}.", encode(json!({"alg": "none", "typ": "JWT"})), encode(claims.clone()))
    };
    for (bad, why) in [
        (token(&json!({"sub": "ann", "exp": 1_000_000_000}), HS256, None, SECRET), "it is over"),
        (token(&json!({"sub": "ann"}), HS256, None, SECRET), "it has no end"),
        (token(&json!({"exp": 4_000_000_000_u64}), HS256, None, SECRET), "it is of nobody"),
        (token(&json!({"sub": "", "exp": 4_000_000_000_u64}), HS256, None, SECRET), "it is of nobody"),
        (
            token(&json!({"sub": "ann", "exp": 4_000_000_000_u64, "nbf": 3_900_000_000_u64}), HS256, None, SECRET),
            "it is not yet",
        ),
        (token(&claims, HS512, None, SECRET), "another algorithm"),
        (token(&claims, HS256, Some("other"), SECRET), "an unknown key"),
        (token(&claims, HS256, Some("k"), SECRET), "another key's"),
        (token(&claims, HS256, None, b"another secret of thirty-two bytes or more"), "a forged one"),
        (without(&token(&claims, HS256, None, SECRET)), "no signature"),
        (none, "no algorithm"),
        ("x.y.z".to_owned(), "nothing"),
        (String::new(), "nothing"),
    ] {
        assert_eq!(status(&bad), 401, "{why}");
    }
    let short = JwtKey { id: None, algorithm: JwtAlgorithm::Hs256, key: b"short".to_vec() };
    let place = tempfile::tempdir().unwrap();
    let config = stemmadb_server::Config {
        jwt_keys: vec![short],
        address: ([127, 0, 0, 1], 0).into(),
        ..stemmadb_server::Config::new(place.path())
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(stemmadb_server::Server::start(config)).is_err());
}

/// A key pair as PEM: private, public.
struct KeyPair(String, String);

fn rsa() -> KeyPair {
    let key = RsaPrivateKey::new(&mut OsRng, 2048).unwrap();
    let private = key.to_pkcs8_pem(LineEnding::LF).unwrap().to_string();
    KeyPair(private, key.to_public_key().to_public_key_pem(LineEnding::LF).unwrap())
}

fn elliptic() -> KeyPair {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    KeyPair(key.serialize_pem(), key.public_key_pem())
}

fn signed(claims: &Value, algorithm: Algorithm, id: &str, key: &EncodingKey) -> String {
    encode(&Header { kid: Some(id.to_owned()), ..Header::new(algorithm) }, claims, key).unwrap()
}

#[test]
fn jwt_signed_with_a_private_key_is_verified_with_the_public_key() {
    let (rsa_key, other_rsa, ec_key, other_ec) = (rsa(), rsa(), elliptic(), elliptic());
    let server = TestServer::with(|mut config| {
        let key = |id: &str, algorithm, pair: &KeyPair| JwtKey {
            id: Some(id.to_owned()),
            algorithm,
            key: pair.1.clone().into_bytes(),
        };
        config.jwt_keys = vec![key("r", JwtAlgorithm::Rs256, &rsa_key), key("e", JwtAlgorithm::Es256, &ec_key)];
        config
    });
    prepare(&server);
    let status =
        |token: &str| server.send("GET", "/db/d", &[("Authorization", &format!("Bearer {token}"))], b"").status;
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64});
    let by_rsa = |pair: &KeyPair| EncodingKey::from_rsa_pem(pair.0.as_bytes()).unwrap();
    let by_ec = |pair: &KeyPair| EncodingKey::from_ec_pem(pair.0.as_bytes()).unwrap();
    use Algorithm::{ES256, HS256, RS256, RS512};
    assert_eq!(status(&signed(&claims, RS256, "r", &by_rsa(&rsa_key))), 200);
    assert_eq!(status(&signed(&claims, ES256, "e", &by_ec(&ec_key))), 200);
    let over = json!({"sub": "ann", "exp": 1_000_000_000});
    // A token that anybody can make: the public key is not secret.
    let public = |pair: &KeyPair| EncodingKey::from_secret(pair.1.as_bytes());
    for (bad, why) in [
        (signed(&claims, RS256, "r", &by_rsa(&other_rsa)), "another private key"),
        (signed(&claims, ES256, "e", &by_ec(&other_ec)), "another private key"),
        (signed(&claims, RS512, "r", &by_rsa(&rsa_key)), "another algorithm"),
        (signed(&claims, RS256, "e", &by_rsa(&rsa_key)), "another key's id"),
        (signed(&claims, ES256, "r", &by_ec(&ec_key)), "another key's id"),
        (signed(&claims, HS256, "r", &public(&rsa_key)), "the public key as a secret"),
        (signed(&claims, HS256, "e", &public(&ec_key)), "the public key as a secret"),
        (signed(&over, RS256, "r", &by_rsa(&rsa_key)), "it is over"),
        (signed(&over, ES256, "e", &by_ec(&ec_key)), "it is over"),
    ] {
        assert_eq!(status(&bad), 401, "{why}");
    }
}
