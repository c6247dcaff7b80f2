//! A server whose databases are encrypted.

use std::net::SocketAddr;

use serde_json::json;
use stemmadb::encryption::EncryptionKey;
use stemmadb::{Database, ErrorKind, Options};
use stemmadb_server::{Config, Server};

use crate::client::TestServer;

/// A text that must not be found in any file.
const SECRET: &str = "Zanzibar-Quetzalcoatl";

#[test]
fn all_databases_of_a_server_are_encrypted_with_its_key_file() {
    needs_one_server!("it looks at the directories of databases");
    let directory = tempfile::tempdir().unwrap();
    let key_file = directory.path().join("key");
    std::fs::write(&key_file, EncryptionKey::generate().unwrap()).unwrap();
    let backups = directory.path().join("backups");
    let databases = directory.path().join("databases");
    let mut server = TestServer::with(|config| Config {
        directory: databases.clone(),
        key_file: Some(key_file.clone()),
        backups: Some(backups.clone()),
        ..config
    });
    server.database("library", &[json!({"_id": SECRET, "title": SECRET})]);
    server.database("_users", &[]);
    let user = json!({"name": SECRET, "password": "secret", "roles": [], "type": "user"});
    assert_eq!(server.put(&format!("/_users/org.couchdb.user:{SECRET}"), &user).status, 201);
    assert_eq!(server.post("/library/_backup", &json!({})).status, 201);
    // Its backups are restored with the same key.
    let restored = server.post("/copy/_restore", &json!({"target": "library"}));
    assert_eq!((restored.status, &restored.json()["documents"]), (201, &json!(1)), "{restored:?}");
    assert_eq!(server.get(&format!("/copy/{SECRET}")).json()["title"], SECRET);
    server.put("/library/later", &json!({"title": SECRET}));
    let reverted = server.post("/library/_restore", &json!({"revert": true}));
    assert_eq!((reverted.status, &reverted.json()["changed"]), (201, &json!(1)), "{reverted:?}");
    let checked = json!({"continuous": true, "target": "checked", "interval": 0.01, "check": 0.05});
    assert_eq!(server.post("/library/_backup", &checked).status, 202);
    let check = loop {
        match &server.get("/library").json()["backup"]["check"] {
            serde_json::Value::Null => std::thread::sleep(std::time::Duration::from_millis(20)),
            check => break check.clone(),
        }
    };
    assert_eq!(check["error"], json!(null), "{check}");
    server.restart();
    assert_eq!(server.get(&format!("/library/{SECRET}")).json()["title"], SECRET);
    assert_eq!(server.get(&format!("/_users/org.couchdb.user:{SECRET}")).json()["name"], SECRET);

    drop(server);
    let mut files = 0;
    for root in [&databases, &backups] {
        visit(root, &mut |bytes| {
            files += 1;
            assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()));
        });
    }
    assert!(files > 10, "{files} files");
    let library = databases.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let library = library.filter(|path| path.join("KEYS").exists()).collect::<Vec<_>>();
    assert!(library.len() >= 3, "the catalog and the databases have keys: {library:?}");
    let error = Database::open_with(&library[0], Options::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyRequired);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let config = Config { address: SocketAddr::from(([127, 0, 0, 1], 0)), ..Config::new(&databases) };
    let refused = runtime.block_on(Server::start(config)).err().unwrap();
    assert!(refused.reason().contains("its key is needed"), "{}", refused.reason());
}

/// Passes the contents of all files below a directory on.
fn visit(directory: &std::path::Path, see: &mut dyn FnMut(&[u8])) {
    for entry in directory.read_dir().unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => visit(&entry.path(), see),
            false => see(&std::fs::read(entry.path()).unwrap()),
        }
    }
}
