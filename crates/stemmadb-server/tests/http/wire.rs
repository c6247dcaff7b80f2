//! Rights over the wire protocol: each operation's answers to users whom an access rule restricts.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use stemmadb_server::{Access, Config, Wire};
use stemmadb_wire::{
    AnswerReader, Credentials, Encoding, FrameBuffer, FrameKind, Hello, Item, Operation, Request, VERSION, WriteKey,
    write_frame,
};

use crate::access_rules::{MARK, fill_new, rule, security, users};
use crate::client::TestServer;
use crate::matrix::{Restricted, WIRE, expected};

/// The largest frame that a server may send here.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// The documents that alice may read.
const VISIBLE: [&str; 4] = ["a1", "a2", "a3", "public"];

/// A connection with the protocol's frames, which can also send what the client library would not.
pub(crate) struct WireClient {
    stream: TcpStream,
    frames: FrameBuffer,
    answers: AnswerReader,
    next_request: u32,
}

/// What the server sent for a request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The payloads of all frames.
    pub(crate) text: String,
    /// The rows of all Items and of the Reply.
    pub(crate) rows: Vec<Value>,
    /// The Reply.
    pub(crate) value: Value,
    /// The kind of the error.
    pub(crate) error: Option<String>,
}

impl WireClient {
    fn connect(address: SocketAddr, user: &str, encoding: Encoding) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let password = if user == "admin" { "secret".to_owned() } else { format!("{user}'s") };
        let credentials = match user {
            "" => Credentials::Anonymous,
            user => Credentials::Password { user: user.to_owned(), password },
        };
        let hello = Hello { versions: (VERSION, VERSION), encoding, credentials };
        let (frames, answers) = (FrameBuffer::new(FRAME_BYTES_MAX), AnswerReader::new(encoding));
        let mut client = WireClient { stream, frames, answers, next_request: 1 };
        client.send(FrameKind::Hello, 0, |out| hello.write(out));
        assert_eq!(client.receive().0, FrameKind::Welcome);
        client
    }

    fn send(&mut self, kind: FrameKind, request: u32, payload: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, kind, request, payload);
        self.stream.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> (FrameKind, u32, Vec<u8>) {
        loop {
            if let Some(frame) = self.frames.next_frame().unwrap() {
                return (frame.kind, frame.request, frame.payload.to_vec());
            }
            let count = self.stream.read(self.frames.space()).unwrap();
            assert!(count > 0, "the server closed the connection");
            self.frames.add(count);
        }
    }

    /// Sends a request and reads its frames to the last one. A stream is cancelled after its first rows.
    pub(crate) fn ask(&mut self, operation: Operation, database: &str, arguments: &Value) -> Answer {
        self.ask_with(None, operation, database, arguments)
    }

    /// The arguments of a feed of `notes` that begins now.
    fn position(&mut self) -> Value {
        let info = self.ask(Operation::Info, "notes", &json!({})).value;
        match info.get("token") {
            Some(token) => json!({ "after": token }),
            None => json!({"since": info["sequence"]}),
        }
    }

    /// As [`WireClient::ask`], of a write with a key.
    pub(crate) fn ask_with(
        &mut self,
        key: Option<WriteKey>,
        operation: Operation,
        database: &str,
        arguments: &Value,
    ) -> Answer {
        let id = self.next_request;
        self.next_request += 1;
        let arguments = stemmadb::Value::from_serialize(arguments).unwrap();
        let encoding = self.answers.encoding();
        self.send(FrameKind::Request, id, |out| {
            Request::write(operation, database, key, &arguments, encoding, out);
        });
        if operation == Operation::AttachFile {
            self.send(FrameKind::Data, id, |out| out.extend_from_slice(b"content"));
            self.send(FrameKind::Data, id, |_| ());
        }
        let mut answer = Answer::default();
        loop {
            let (kind, of, payload) = self.receive();
            if of != id || matches!(kind, FrameKind::Credit | FrameKind::Ping) {
                continue;
            }
            answer.text.push_str(&String::from_utf8_lossy(&payload));
            match kind {
                FrameKind::Item => {
                    answer.rows.extend(self.answers.rows(&payload).unwrap().into_iter().map(json_of));
                    self.send(FrameKind::Credit, id, |out| out.extend_from_slice(&1u32.to_le_bytes()));
                    if is_endless(operation) {
                        self.send(FrameKind::Cancel, id, |_| ());
                    }
                }
                FrameKind::Data => self.send(FrameKind::Credit, id, |out| out.extend_from_slice(&1u32.to_le_bytes())),
                FrameKind::Reply => {
                    match self.answers.reply(&payload).unwrap().into_rows() {
                        Ok((rows, rest)) => {
                            answer.rows.extend(rows.into_iter().map(json_of));
                            answer.value = json_of(Item::Value(rest));
                        }
                        Err(_) => answer.value = json_of(self.answers.reply(&payload).unwrap().into_item().unwrap()),
                    }
                    return answer;
                }
                FrameKind::Error => {
                    let error = encoding.read(&payload).unwrap();
                    answer.error = Some(error.get("error").unwrap().as_str().unwrap().to_owned());
                    return answer;
                }
                other => panic!("{operation:?}: a server does not send {other:?}"),
            }
        }
    }
}

fn json_of(item: Item) -> Value {
    let parsed = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    match item {
        Item::Value(value) => parsed(value.to_json()),
        Item::Document(document) => json!({
            "id": document.id().as_str(),
            "rev": document.revision().to_string(),
            "seq": document.sequence().get(),
            "body": parsed(document.to_json().unwrap()),
            "deleted": document.is_deleted(),
        }),
    }
}

fn is_endless(operation: Operation) -> bool {
    matches!(operation, Operation::Subscribe | Operation::Watch | Operation::SubscribePaths | Operation::SubscribeTopic)
}

/// Requests that ask an operation for as much as it gives: about documents that alice may not read, and about all.
/// `hidden` and `own` are revisions of `hidden-1` and `a2`. A new operation needs requests here.
fn requests(operation: Operation, hidden: &str, own: &str) -> Vec<Value> {
    let query = json!({"selector": {}});
    let by_value = json!({"selector": {"text": MARK}});
    let edits = [
        json!({"op": "insert", "id": "hidden-1", "body": {"owner": "alice"}}),
        json!({"op": "replace", "id": "hidden-1", "rev": hidden, "body": {"owner": "alice"}}),
        json!({"op": "upsert", "id": "hidden-1", "body": {"owner": "alice"}}),
        json!({"op": "update", "id": "hidden-1", "patch": {"$inc": {"text": 1}}}),
        json!({"op": "update", "id": "hidden-1", "rev": hidden, "merge": {"owner": "alice"}}),
        json!({"op": "delete", "id": "hidden-1", "rev": hidden}),
        json!({"op": "detach", "id": "hidden-1", "rev": hidden, "name": "file"}),
        json!({"op": "insert", "id": "new", "body": {"owner": "bob"}}),
        json!({"op": "update", "id": "a2", "rev": own, "merge": {"owner": "bob"}}),
    ];
    match operation {
        Operation::Noop | Operation::Databases | Operation::Flush | Operation::Info => vec![json!({})],
        Operation::CreateDatabase | Operation::DeleteDatabase => vec![json!({})],
        Operation::Get => {
            ["hidden-1", "hidden-3", "_design/views", "_local/shared", "a1"].map(|id| json!({"id": id})).into()
        }
        Operation::GetMany => vec![json!({"ids": ["a1", "hidden-1", "_design/views", "_local/shared"]})],
        Operation::GetRevision => vec![
            json!({"id": "hidden-1", "rev": hidden}),
            json!({"id": "a2", "rev": "1-00000000000000000000000000000001"}),
            json!({"id": "a2", "rev": own}),
        ],
        Operation::Edit => edits.into(),
        Operation::Bulk => vec![json!({ "edits": edits })],
        Operation::Transact => {
            let mut requests: Vec<_> = edits.iter().map(|edit| json!({"edits": [edit]})).collect();
            for check in [
                json!({"id": "hidden-1"}),
                json!({"id": "hidden-1", "rev": hidden}),
                json!({"query": by_value, "count": 9}),
                json!({"query": by_value, "rows": {"hidden-1": hidden}}),
            ] {
                requests.push(json!({"checks": [check], "edits": []}));
            }
            requests
        }
        Operation::UpdateWhere => vec![
            json!({"query": by_value, "patch": {"$inc": {"text": 1}}}),
            json!({"query": query, "merge": {"seen": true}}),
            json!({"query": by_value, "delete": true}),
        ],
        Operation::Batch => {
            let mut steps = vec![
                json!([{"op": "get", "id": "hidden-1"}, {"op": "get_many", "ids": ["hidden-1", "a1"]}]),
                json!([{"op": "find", "query": query}, {"op": "count", "query": by_value}]),
                json!([{"op": "aggregate", "aggregation": {"group_by": "text", "figures": {"n": "count"}}}]),
                json!([{"op": "get", "id": "a1"}, {"op": "get", "from": {"id": [0, "body.ref"]}}]),
                json!([{"op": "get", "id": "a1"}, {"op": "require", "of": 0, "selector": {"text": MARK}}]),
                json!([{"op": "check", "id": "hidden-1", "rev": hidden}]),
            ];
            steps.extend(edits.iter().map(|edit| json!([edit, {"op": "find", "query": query}])));
            steps.into_iter().map(|steps| json!({ "steps": steps })).collect()
        }
        Operation::ReadFile => vec![
            json!({"id": "hidden-1", "name": "file"}),
            json!({"id": "hidden-1", "name": "file", "rev": hidden}),
            json!({"id": "hidden-1", "name": "file", "digest": "sha256-x", "offset": 1}),
        ],
        Operation::AttachFile => vec![json!({"id": "hidden-1", "rev": hidden, "name": "file"})],
        Operation::Find => vec![
            json!({"query": query}),
            json!({"query": query, "shape": "ids"}),
            json!({"query": {"selector": {}, "fields": ["text"]}, "shape": "values"}),
            json!({"query": by_value, "shape": "ids"}),
            json!({"query": {"selector": {}, "limit": 2}}),
            json!({"query": query, "as_of": 3}),
            json!({"query": query, "memory_max": 1}),
        ],
        Operation::Count => {
            vec![json!({"query": query}), json!({"query": by_value}), json!({"query": query, "as_of": 3})]
        }
        Operation::Aggregate => {
            vec![json!({"aggregation": {"group_by": "text", "figures": {"n": "count", "m": {"max": "n"}}}})]
        }
        Operation::Distinct | Operation::Summary => {
            ["text", "n", "owner"].map(|path| json!({"query": query, "path": path})).into()
        }
        Operation::Extreme => ["text", "n"].map(|path| json!({"query": query, "path": path, "largest": true})).into(),
        Operation::GroupBy => {
            vec![json!({"query": query, "paths": ["text"]}), json!({"query": query, "paths": ["text"], "summary": "n"})]
        }
        Operation::Explain => vec![json!({"query": by_value, "analyze": true})],
        Operation::OpenSnapshot | Operation::CloseSnapshot => vec![json!({})],
        Operation::Changes => vec![
            json!({"since": 0, "documents": true}),
            json!({"since": 0, "documents": true, "ids": ["hidden-1", "a1"]}),
            json!({"since": 0, "documents": true, "selector": {"n": 100}}),
            json!({"since": 0, "documents": true, "paths": ["text"]}),
            json!({"since": 0, "descending": true, "limit": 3, "documents": true}),
        ],
        Operation::Subscribe => vec![
            json!({"since": 0, "documents": true}),
            json!({"since": 0, "documents": true, "ids": ["hidden-1", "a1"]}),
            json!({"since": 0, "documents": true, "paths": ["n"]}),
        ],
        Operation::Watch => {
            vec![json!({"query": query}), json!({"query": {"selector": {}, "sort": ["n"], "limit": 9}})]
        }
        Operation::SubscribePaths => vec![json!({"patterns": ["#"], "since": 0})],
        Operation::KeyGet => vec![json!({"namespace": "names", "key": "k"})],
        Operation::KeyList => vec![json!({"namespace": "names"})],
        Operation::KeySet => vec![json!({"namespace": "names", "key": "k", "value": 1, "expected": 2})],
        Operation::KeyRemove => vec![json!({"namespace": "names", "key": "none"})],
        Operation::KeyIncrement => vec![json!({"namespace": "names", "key": "k", "by": 1})],
        Operation::ViewDefine => vec![json!({"name": "by_text", "definition": {"key": "text"}})],
        Operation::ViewRemove => vec![json!({"name": "by_text"})],
        Operation::ViewList => vec![json!({})],
        Operation::ViewInfo => vec![json!({"name": "views/all", "update": true})],
        Operation::ViewQuery => ["rows", "count", "reduce", "groups"]
            .map(|shape| json!({"name": "views/all", "shape": shape, "documents": true}))
            .into(),
        Operation::IndexCreate => vec![json!({"index": {"name": "i", "on": ["n"]}})],
        Operation::IndexRemove => vec![json!({"name": "i"})],
        Operation::IndexList | Operation::SchemaList => vec![json!({})],
        Operation::SchemaRequire => vec![json!({"collection": "c", "schema": {"type": "object"}})],
        Operation::SchemaRemove => vec![json!({"collection": "c"})],
        Operation::SchemaViolations => vec![json!({"collection": "hidden-1"})],
        Operation::Revisions => vec![json!({"id": "hidden-1"}), json!({"id": "a2"})],
        Operation::DocumentAt => vec![json!({"id": "hidden-1", "at": 4}), json!({"id": "a2", "at": 4})],
        Operation::Differences => vec![json!({"start": 0, "end": 20})],
        Operation::Undelete => vec![json!({"id": "hidden-1"})],
        Operation::Revert => vec![json!({"query": by_value, "to": 1, "count_only": true})],
        Operation::Pin => vec![json!({"name": "p", "at": {"ago_us": 0}})],
        Operation::Release => vec![json!({"name": "p"})],
        Operation::Keep => vec![json!({"retention": {}})],
        Operation::Retention => vec![json!({})],
        Operation::SequenceAt => vec![json!({"at": 3})],
        // The tests of functions are those of the client.
        Operation::CallFunction => vec![json!({"name": "none", "input": 1})],
        Operation::Publish => vec![json!({"topic": "t", "payload": MARK})],
        Operation::SubscribeTopic => vec![json!({"patterns": ["#"]})],
    }
}

fn with_wire(config: Config) -> Config {
    let address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    Config { wire: Wire { address, ..Wire::default() }, ..config }
}

/// The parameters with which the database is created: an ordinary one, and a virtual one.
const KINDS: [&str; 2] = ["", "?shards=3"];

/// A server with the documents of the tests over HTTP, and the revisions of `hidden-1` and `a2`.
fn server() -> (TestServer, String, String) {
    server_of("")
}

/// As [`server`], with a database that is created with these parameters.
fn server_of(kind: &str) -> (TestServer, String, String) {
    let server = TestServer::with(with_wire);
    users(&server);
    fill_new(&server, kind);
    assert_eq!(server.put("/notes/_security", &security(rule())).status, 200);
    // A hidden branch of a visible document.
    let branch = |rev: &str, owner: &str, text: &str| json!({"_id": "a2", "_rev": rev, "owner": owner, "text": text});
    let hidden = branch("1-00000000000000000000000000000001", "bob", MARK);
    let branches = [hidden, branch("3-00000000000000000000000000000002", "alice", "winner")];
    let branches = json!({"new_edits": false, "docs": branches});
    assert_eq!(server.post("/notes/_bulk_docs", &branches).json(), json!([]));
    let revision = |id: &str| server.get(&format!("/notes/{id}")).json()["_rev"].as_str().unwrap().to_owned();
    let (hidden, own) = (revision("hidden-1"), revision("a2"));
    (server, hidden, own)
}

impl TestServer {
    pub(crate) fn wire(&self, user: &str) -> WireClient {
        self.wire_with(user, Encoding::Records)
    }

    fn wire_with(&self, user: &str, encoding: Encoding) -> WireClient {
        WireClient::connect(self.wire_address(), user, encoding)
    }
}

/// Every operation, asked for as much as it gives, reveals nothing about other documents to a restricted user, and
/// changes none. The same requests of an administrator show what there is to hide.
#[test]
fn no_operation_leaks_hidden_documents() {
    needs_one_server!("these connections do not follow a database to its server");
    for (encoding, kind) in [(Encoding::Json, ""), (Encoding::Records, ""), (Encoding::Records, "?shards=3")] {
        no_operation_leaks(encoding, kind);
    }
}

fn no_operation_leaks(encoding: Encoding, kind: &str) {
    let (server, hidden, own) = server_of(kind);
    let (mut alice, mut admin) = (server.wire_with("alice", encoding), server.wire_with("admin", encoding));
    let before = server.get("/notes/hidden-1").json();
    let mut revealing = BTreeSet::new();
    for operation in Operation::ALL.iter().copied() {
        let restricted = expected()
            .get(&(WIRE, format!("{operation:?}").as_str()))
            .unwrap_or_else(|| {
                panic!("{operation:?}: write it into matrix.txt");
            })
            .1;
        for arguments in requests(operation, &hidden, &own) {
            let answer = alice.ask(operation, "notes", &arguments);
            let shown = format!("{operation:?} {arguments}: {answer:?}");
            // Errors may repeat ids of the request, but no value.
            assert!(!answer.text.contains(MARK), "{shown}");
            for id in ["hidden-2", "hidden-3", "hidden-4"] {
                assert!(!answer.text.contains(id), "{shown}");
            }
            assert!(!answer.text.contains(&hidden) || arguments.to_string().contains(&hidden), "{shown}");
            assert_ne!(answer.error.as_deref(), Some("internal"), "{shown}");
            match restricted {
                Restricted::ByRule => {}
                _ if operation == Operation::Noop => {}
                _ => assert_eq!(answer.error.as_deref(), Some("forbidden"), "{shown}"),
            }
            if restricted == Restricted::Refused {
                assert!(answer.text.contains("access rule limits you"), "{shown}");
            }
        }
        // Nothing is changed by an administrator here.
        let reads = matches!(
            operation,
            Operation::Get
                | Operation::GetMany
                | Operation::GetRevision
                | Operation::ReadFile
                | Operation::Find
                | Operation::Aggregate
                | Operation::Distinct
                | Operation::Extreme
                | Operation::GroupBy
                | Operation::Changes
                | Operation::Subscribe
                | Operation::Watch
                | Operation::KeyGet
                | Operation::Revisions
                | Operation::ViewQuery
        );
        if reads {
            for arguments in requests(operation, &hidden, &own) {
                if admin.ask(operation, "notes", &arguments).text.contains(MARK) {
                    revealing.insert(format!("{operation:?}"));
                }
            }
        }
    }
    // Subscriptions and live queries are cancelled after their first rows, which may be of any documents.
    assert!(revealing.len() >= 13, "{kind} {revealing:?}");
    assert_eq!(server.get("/notes/hidden-1").json(), before);
    assert_eq!(server.get("/notes/new").status, 404);
    assert_eq!(server.get("/notes/a2").json()["owner"], "alice");
}

/// A document's history has the revisions that the user may read.
#[test]
fn histories_have_the_visible_revisions() {
    needs_one_server!("these connections do not follow a database to its server");
    let (server, ..) = server();
    let (mut alice, mut admin) = (server.wire("alice"), server.wire("admin"));
    for body in [json!({"owner": "bob", "text": MARK}), json!({"owner": "alice", "n": 9})] {
        let edit = json!({"op": "upsert", "id": "a1", "body": body});
        assert_eq!(admin.ask(Operation::Edit, "notes", &edit).error, None);
    }
    let of_admin = admin.ask(Operation::Revisions, "notes", &json!({"id": "a1"})).rows;
    let of_alice = alice.ask(Operation::Revisions, "notes", &json!({"id": "a1"})).rows;
    assert!(of_admin.len() > of_alice.len() && of_alice.len() >= 2, "{of_admin:?} {of_alice:?}");
    for row in &of_admin {
        let at = json!({"id": "a1", "at": row["seq"]});
        let read = alice.ask(Operation::DocumentAt, "notes", &at);
        assert!(!read.text.contains(MARK), "{read:?}");
    }
    let missing = |id: &str| alice.ask(Operation::Revisions, "notes", &json!({ "id": id })).text.replace(id, "");
    let mut missing = missing;
    assert_eq!(missing("hidden-1"), missing("absent-1"));
}

/// Counts, figures and pages are those of the documents that the user may read.
#[test]
fn operations_answer_from_the_visible_documents() {
    needs_one_server!("these connections do not follow a database to its server");
    KINDS.iter().for_each(|kind| answers_are_of_visible_documents(kind));
}

fn answers_are_of_visible_documents(kind: &str) {
    let (server, hidden, _) = server_of(kind);
    let is_virtual = !kind.is_empty();
    let mut alice = server.wire("alice");
    let all = json!({"selector": {}});
    let mut ask = |operation, arguments: Value| {
        let answer = alice.ask(operation, "notes", &arguments);
        assert_eq!(answer.error, None, "{operation:?} {arguments}: {answer:?}");
        answer
    };
    assert_eq!(ask(Operation::Info, json!({})).value["documents"], 4);
    assert_eq!(ask(Operation::Count, json!({"query": all})).value, 4);
    assert_eq!(ask(Operation::Count, json!({"query": {"selector": {"n": 100}}})).value, 0);
    assert_eq!(ask(Operation::Get, json!({"id": "hidden-1"})).value, Value::Null);
    let many = ask(Operation::GetMany, json!({"ids": ["a1", "hidden-1", "a3"]})).rows;
    assert_eq!(many.iter().map(Value::is_null).collect::<Vec<_>>(), [false, true, false]);
    let found = ask(Operation::Find, json!({"query": all, "shape": "ids"}));
    assert_eq!(found.rows.iter().map(|id| id.as_str().unwrap()).collect::<BTreeSet<_>>(), VISIBLE.into());
    assert_eq!(found.value["read"], 0);
    // Pages by token have all visible documents, each once.
    let (mut token, mut paged) = (Value::Null, Vec::new());
    loop {
        let mut query = json!({"selector": {}, "sort": ["_id"], "limit": 3});
        if !token.is_null() {
            query["bookmark"] = token;
        }
        let page = ask(Operation::Find, json!({"query": query, "shape": "ids"}));
        let count = page.rows.len();
        paged.extend(page.rows);
        token = page.value["token"].clone();
        if count < 3 || token.is_null() {
            break;
        }
    }
    assert_eq!(paged, VISIBLE.map(Value::from));
    let largest = json!({"query": all, "path": "n", "largest": true});
    assert_eq!(ask(Operation::Extreme, largest).value, json!([4]));
    let summary = ask(Operation::Summary, json!({"query": all, "path": "n"})).value;
    assert_eq!(summary["count"], 3, "{summary}");
    assert_eq!(ask(Operation::Distinct, json!({"query": all, "path": "owner"})).value, json!(["alice"]));
    let groups = ask(Operation::GroupBy, json!({"query": all, "paths": ["owner"]})).rows;
    assert_eq!(groups, [json!(["alice", 3])]);
    let figures = json!({"aggregation": {"figures": {"n": "count"}}});
    assert_eq!(ask(Operation::Aggregate, figures).rows[0]["figures"], json!({"n": 4}));
    let changes = ask(Operation::Changes, json!({"since": 0})).rows;
    assert_eq!(changes.iter().map(|row| row["id"].as_str().unwrap()).collect::<BTreeSet<_>>(), VISIBLE.into());
    // A transaction sees no hidden document, neither in checks nor in steps.
    let mut checks = vec![json!({"id": "hidden-1"})];
    checks.extend((!is_virtual).then(|| json!({"query": all, "count": 4})));
    ask(Operation::Transact, json!({"checks": checks, "edits": []}));
    let steps = json!([{"op": "get", "id": "hidden-1"}, {"op": "count", "query": all}, {"op": "find", "query": all}]);
    let steps = ask(Operation::Batch, json!({ "steps": steps })).value;
    assert_eq!((&steps[0], &steps[1], steps[2].as_array().unwrap().len()), (&Value::Null, &json!(4), 4));
    // A snapshot that is kept applies the rule to each read. Shards have no common one.
    if !is_virtual {
        let snapshot = ask(Operation::OpenSnapshot, json!({})).value["snapshot"].clone();
        assert_eq!(ask(Operation::Count, json!({"query": all, "snapshot": snapshot})).value, 4);
        assert_eq!(ask(Operation::Get, json!({"id": "hidden-1", "snapshot": snapshot})).value, Value::Null);
    }
    assert_eq!(ask(Operation::UpdateWhere, json!({"query": all, "merge": {"seen": true}})).value, 4);
    assert_eq!(server.get("/notes/hidden-2").json().get("seen"), None);
    assert_eq!(server.get("/notes/hidden-1").json()["_rev"], hidden.as_str());
}

/// Writes need a document that is visible before and after, in whatever operation they are sent.
#[test]
fn writes_obey_the_rule() {
    needs_one_server!("these connections do not follow a database to its server");
    KINDS.iter().for_each(|kind| writes_obey_the_rule_in(kind));
}

fn writes_obey_the_rule_in(kind: &str) {
    let (server, hidden, own) = server_of(kind);
    let mut alice = server.wire("alice");
    let edit = |op: &str, id: &str, rev: Option<&str>, owner: &str| {
        let mut edit = json!({"op": op, "id": id, "body": {"owner": owner}, "merge": {"owner": owner}});
        if let Some(rev) = rev {
            edit["rev"] = rev.into();
        }
        edit
    };
    let refused = [
        (edit("insert", "x", None, "bob"), "forbidden"),
        (edit("insert", "hidden-1", None, "alice"), "forbidden"),
        (edit("upsert", "hidden-1", None, "alice"), "forbidden"),
        (edit("replace", "hidden-1", Some(&hidden), "alice"), "forbidden"),
        (edit("update", "hidden-1", None, "alice"), "not_found"),
        (edit("delete", "hidden-1", Some(&hidden), ""), "not_found"),
        (edit("update", "a2", None, "bob"), "forbidden"),
        (edit("replace", "a2", Some(&own), "bob"), "forbidden"),
    ];
    for (edit, kind) in &refused {
        for (operation, arguments) in [
            (Operation::Edit, edit.clone()),
            (Operation::Transact, json!({"edits": [edit]})),
            (Operation::Batch, json!({"steps": [edit]})),
        ] {
            let answer = alice.ask(operation, "notes", &arguments);
            assert_eq!(answer.error.as_deref(), Some(*kind), "{operation:?} {arguments}: {answer:?}");
        }
        let answer = alice.ask(Operation::Bulk, "notes", &json!({"edits": [edit]})).value;
        assert_eq!(answer[0]["error"], *kind, "{edit}: {answer}");
    }
    // One that is refused takes the transaction with it. In a virtual database, it is about two buckets.
    let both = json!({"edits": [edit("insert", "y", None, "alice"), edit("insert", "x", None, "bob")]});
    let kind_of_error = if kind.is_empty() { "forbidden" } else { "invalid" };
    assert_eq!(alice.ask(Operation::Transact, "notes", &both).error.as_deref(), Some(kind_of_error));
    assert_eq!(server.get("/notes/y").status, 404);
    for (operation, arguments) in [
        (Operation::Edit, edit("insert", "y1", None, "alice")),
        (Operation::Edit, edit("upsert", "y1", None, "alice")),
        (Operation::Transact, json!({"edits": [edit("insert", "y2", None, "alice")]})),
        (Operation::Batch, json!({"steps": [edit("upsert", "y3", None, "alice")]})),
    ] {
        let answer = alice.ask(operation, "notes", &arguments);
        assert_eq!(answer.error, None, "{operation:?} {arguments}: {answer:?}");
        let ids = ["y1", "y2", "y3"].map(|id| server.get(&format!("/notes/{id}")).status);
        assert!(ids.contains(&200), "{operation:?}");
    }
    // Deletions keep what the rule reads, whoever deletes, so that they reach those who could read the document.
    let mut admin = server.wire("admin");
    let last = alice.position();
    let rev = |id: &str| server.get(&format!("/notes/{id}")).json()["_rev"].clone();
    let delete = |id: &str| json!({"op": "delete", "id": id, "rev": rev(id)});
    assert_eq!(alice.ask(Operation::Edit, "notes", &delete("y1")).error, None);
    assert_eq!(admin.ask(Operation::Edit, "notes", &delete("y2")).error, None);
    assert_eq!(admin.ask(Operation::Edit, "notes", &delete("hidden-2")).error, None);
    // Also in a transaction that wrote the document before.
    let both = json!({"steps": [
        {"op": "update", "id": "y3", "merge": {"n": 1}},
        {"op": "delete", "id": "y3", "from": {"rev": [0, ""]}},
    ]});
    let deleted = admin.ask(Operation::Batch, "notes", &both);
    assert_eq!(deleted.error, None, "{deleted:?}");
    let changes = alice.ask(Operation::Changes, "notes", &last).rows;
    let changes: BTreeSet<_> =
        changes.iter().map(|row| (row["id"].as_str().unwrap(), row["deleted"] == json!(true))).collect();
    assert_eq!(changes, [("y1", true), ("y2", true), ("y3", true)].into());
}

/// An update that names a revision changes that branch, even if another one wins.
#[test]
fn update_of_a_branch_keeps_its_fields() {
    needs_one_server!("these connections do not follow a database to its server");
    let (server, ..) = server();
    let branch = |rev: &str, n: u64| json!({"_id": "branched", "_rev": rev, "owner": "alice", "n": n});
    let (losing, winning) = ("1-00000000000000000000000000000001", "3-00000000000000000000000000000003");
    let branches = json!({"new_edits": false, "docs": [branch(losing, 10), branch(winning, 20)]});
    assert_eq!(server.post("/notes/_bulk_docs", &branches).json(), json!([]));
    let update = |rev: &str| json!({"op": "update", "id": "branched", "rev": rev, "patch": {"$inc": {"n": 1}}});
    let mut alice = server.wire("alice");
    assert_eq!(alice.ask(Operation::Edit, "notes", &update(losing)).error, None);
    let document = server.get("/notes/branched?conflicts=true").json();
    assert_eq!(document["n"], 20);
    let changed = server.get(&format!("/notes/branched?rev={}", document["_conflicts"][0].as_str().unwrap())).json();
    assert_eq!(changed["n"], 11, "{document}");
    // It is not the newest of its branch any more.
    let again = alice.ask(Operation::Edit, "notes", &update(losing));
    assert_eq!(again.error.as_deref(), Some("conflict"), "{again:?}");
}

/// Changes and subscriptions report a document as deleted, whichever operation made it unreadable.
#[test]
fn feeds_tell_that_a_document_is_gone() {
    needs_one_server!("these connections do not follow a database to its server");
    KINDS.iter().for_each(|kind| feeds_tell_it_of(kind));
}

fn feeds_tell_it_of(kind: &str) {
    let (server, ..) = server_of(kind);
    let (mut alice, mut admin) = (server.wire("alice"), server.wire("admin"));
    let mut since = alice.position();
    since["documents"] = json!(true);
    let take = |id: &str| json!({"op": "update", "id": id, "merge": {"owner": "bob", "text": MARK}});
    for (operation, arguments) in [
        (Operation::Edit, take("a1")),
        (Operation::Batch, json!({"steps": [{"op": "update", "id": "a2", "merge": {"n": 9}}, take("a2")]})),
        (Operation::UpdateWhere, json!({"query": {"selector": {"_id": "a3"}}, "merge": {"owner": "bob"}})),
    ] {
        assert_eq!(admin.ask(operation, "notes", &arguments).error, None, "{arguments}");
    }
    for operation in [Operation::Changes, Operation::Subscribe] {
        let reported = alice.ask(operation, "notes", &since);
        assert!(!reported.text.contains(MARK), "{reported:?}");
        let changes = reported.rows.iter().filter(|row| row.get("id").is_some());
        let mut rows: Vec<_> = changes.map(|row| (row["id"].as_str().unwrap(), &row["deleted"])).collect();
        // Those of shards are in no order.
        rows.sort_by_key(|row| row.0);
        assert_eq!(rows, ["a1", "a2", "a3"].map(|id| (id, &json!(true))), "{operation:?}");
        let of_a1 = reported.rows.iter().find(|row| row["id"] == "a1").unwrap();
        let read = json!({"id": "a1", "rev": of_a1["rev"]});
        let read = alice.ask(Operation::GetRevision, "notes", &read).value;
        assert_eq!((&read["deleted"], &read["body"]), (&json!(true), &json!({"owner": "alice"})));
    }
}

/// Streams end when the rule changes, also those that always have news.
#[test]
fn streams_end_when_the_rule_changes() {
    needs_one_server!("these connections do not follow a database to its server");
    KINDS.iter().for_each(|kind| streams_end_in(kind));
}

fn streams_end_in(kind: &str) {
    let (server, ..) = server_of(kind);
    let (mut alice, mut admin) = (server.wire("alice"), server.wire("admin"));
    let arguments = stemmadb::Value::from_serialize(&json!({"since": 0, "documents": true})).unwrap();
    alice.send(FrameKind::Request, 1, |out| {
        Request::write(Operation::Subscribe, "notes", None, &arguments, Encoding::Records, out);
    });
    assert_eq!(alice.receive().0, FrameKind::Item);
    let narrower = json!({"selector": {"owner": {"$user": "name"}, "n": 3}});
    assert_eq!(server.put("/notes/_security", &security(narrower)).status, 200);
    let started = std::time::Instant::now();
    for n in 0.. {
        assert!(started.elapsed() < Duration::from_secs(120), "the stream applies the old rule");
        let news = json!({"op": "upsert", "id": "a1", "body": {"owner": "alice", "n": n}});
        assert_eq!(admin.ask(Operation::Edit, "notes", &news).error, None);
        match alice.receive() {
            (FrameKind::Item, ..) => alice.send(FrameKind::Credit, 1, |out| out.extend_from_slice(&1u32.to_le_bytes())),
            (FrameKind::Error, 1, payload) => {
                assert!(String::from_utf8_lossy(&payload).contains("forbidden"));
                break;
            }
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Every operation, asked by every kind of client: the access that `matrix.txt` says.
#[test]
fn access_matrix_holds_for_every_operation() {
    needs_one_server!("these connections do not follow a database to its server");
    let (server, hidden, own) = server();
    let rows = expected();
    let known: BTreeSet<_> = Operation::ALL.iter().map(|operation| format!("{operation:?}")).collect();
    let written: BTreeSet<_> =
        rows.keys().filter(|(method, _)| *method == WIRE).map(|(_, name)| (*name).to_owned()).collect();
    assert_eq!(written, known, "matrix.txt has a row for each operation");
    let user = json!({"name": "eve", "type": "user", "roles": [], "password": "eve's"});
    assert_eq!(server.put("/_users/org.couchdb.user:eve", &user).status, 201);
    // The members of databases without a rule.
    let members = json!({"members": {"names": ["alice"], "roles": []}, "admins": {"names": ["boss"], "roles": []}});
    for (database, kind) in ["open", "divided"].into_iter().zip(KINDS) {
        assert_eq!(server.put(&format!("/{database}{kind}"), &json!({})).status, 201);
        assert_eq!(server.put(&format!("/{database}/a1"), &json!({})).status, 201);
        assert_eq!(server.put(&format!("/{database}/_security"), &members).status, 200);
    }
    let ranks = [("", 0), ("eve", 1), ("alice", 2), ("boss", 3), ("admin", 4)];
    let clients = ["open", "divided"].into_iter().flat_map(|database| ranks.map(|(user, rank)| (user, database, rank)));
    for (user, database, rank) in clients {
        let mut client = server.wire(user);
        for operation in Operation::ALL.iter().copied() {
            let access = rows[&(WIRE, format!("{operation:?}").as_str())].0;
            let needed = match access {
                Access::Anonymous => 0,
                Access::User => 1,
                Access::Member => 2,
                Access::DatabaseAdmin => 3,
                Access::Metrics | Access::ServerAdmin => 4,
            };
            let is_allowed = rank >= needed;
            if is_allowed && (operation == Operation::DeleteDatabase || is_endless(operation)) {
                continue;
            }
            let arguments = requests(operation, &hidden, &own).into_iter().next().unwrap();
            let answer = client.ask(operation, database, &arguments);
            let is_refused = answer.error.as_deref() == Some("forbidden");
            assert_eq!(is_refused, !is_allowed, "{user} {operation:?} {database} {arguments}: {answer:?}");
        }
    }
}
