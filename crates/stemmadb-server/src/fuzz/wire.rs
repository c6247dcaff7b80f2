//! Conversations by the wire protocol with a whole server over a Unix socket: arbitrary bytes, and frames of known
//! operations with arbitrary arguments.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use stemmadb::{Durability, Value};
use stemmadb_wire::{
    AnswerReader, Credentials, Encoding, FrameBuffer, FrameKind, Hello, Item, Operation, Request, VERSION, Welcome,
    WriteKey, error_from_value, write_frame,
};

use super::requests::{config, token};
use crate::config::Wire;
use crate::server::Server;

/// After this many conversations the server is replaced by a new one.
const CONVERSATIONS_PER_SERVER: usize = 2_000;
/// How long the server may be silent. It ends a conversation whose client has sent everything, however slow it is.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server that has not answered everything is waited for. Fuzzers have little time per input.
const QUIET_TIME: Duration = Duration::from_millis(if cfg!(fuzzing) { 5 } else { 50 });
/// The largest frame that a server may send here.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// Arguments: fields, each with some values.
const FIELDS: [(&str, &[&str]); 24] = [
    ("id", &["\"a\"", "\"new\"", "\"_design/d\"", "\"_local/x\"", "\"\"", "1"]),
    ("ids", &["[\"a\", \"b\"]", "[]", "[1]", "\"a\""]),
    ("rev", &["\"1-967a00dff5e02add41819138abb3284d\"", "\"1-a\"", "\"\"", "{}"]),
    ("op", &["\"insert\"", "\"upsert\"", "\"update\"", "\"delete\"", "\"detach\"", "\"x\""]),
    ("body", &["{}", "{\"a\": [1, {\"b\": null}]}", "{\"_x\": 1}", "[]"]),
    ("patch", &["{\"$inc\": {\"a\": 1}}", "{\"$set\": {\"\": 1}}", "{\"$bad\": 1}", "1"]),
    ("edits", &["[{\"op\": \"insert\", \"id\": \"c\", \"body\": {}}]", "[{}]", "{}"]),
    ("checks", &["[{\"id\": \"a\"}]", "[{\"query\": {\"selector\": {}}, \"count\": 2}]", "[1]"]),
    (
        "steps",
        &[
            "[{\"op\": \"get\", \"id\": \"a\"}, {\"op\": \"get\", \"from\": {\"id\": [0, \"body.a\"]}}]",
            "[{\"op\": \"find\", \"query\": {}}, {\"op\": \"get_many\", \"from\": {\"ids\": [0, \"[].id\"]}}]",
            "[{\"op\": \"insert\", \"id\": \"d\", \"body\": {}, \"from\": {\"id\": [9, \"\"]}}]",
        ],
    ),
    ("query", &["{\"selector\": {}}", "{\"selector\": {\"a\": {\"$gt\": 0}}, \"limit\": 1}", "{}", "[]"]),
    ("aggregation", &["{\"figures\": {\"n\": \"count\"}, \"group_by\": \"a\"}", "{}"]),
    ("path", &["\"a\"", "\"..\"", "\"a[]\""]),
    ("paths", &["[\"a\"]", "[\"a\", \"b[]\"]", "[]"]),
    ("patterns", &["[\"#\"]", "[\"a/+\"]", "[\"#/a\"]", "[]"]),
    ("since", &["0", "18446744073709551615", "-1"]),
    ("as_of", &["1", "18446744073709551615", "{\"ago_us\": 1}", "{\"time_us\": 18446744073709551615}"]),
    ("at", &["1", "{\"ago_us\": 18446744073709551615}", "null"]),
    ("name", &["\"v\"", "\"d/v\"", "\"f\"", "\"/\"", "\"\""]),
    ("definition", &["{\"key\": \"a\"}", "{\"key\": [\"a\"], \"reduce\": \"_sum\"}", "{}"]),
    ("shape", &["\"rows\"", "\"ids\"", "\"values\"", "\"groups\"", "\"reduce\"", "\"count\""]),
    ("index", &["{\"on\": [\"a\"], \"unique\": true}", "{\"on\": []}", "{\"on\": [{\"path\": \"..\"}]}"]),
    ("schema", &["{\"type\": \"object\"}", "{\"$ref\": \"file:///etc/passwd\"}", "1"]),
    ("namespace", &["\"n\"", "\"\"", "\"a/b\""]),
    ("key", &["\"k\"", "1", "[\"a\", {}]"]),
];

/// The server answers by frames only, never with an internal error, and ends when the client has ended. Frames are the
/// same however their bytes arrive.
pub fn wire(data: &[u8]) {
    check_frames(data);
    let Some((kind, rest)) = data.split_first() else { return };
    let conversation = match kind % 3 {
        0 => rest.to_vec(),
        1 => [hello(Encoding::Packed), rest.to_vec()].concat(),
        _ => match build_conversation(&mut Unstructured::new(rest)) {
            Ok(conversation) => conversation,
            Err(_) => return,
        },
    };
    thread_local! {
        static SERVED: RefCell<Option<FuzzedServer>> = const { RefCell::new(None) };
    }
    SERVED.with_borrow_mut(|served| {
        let is_usable = |served: &FuzzedServer| served.count < CONVERSATIONS_PER_SERVER;
        let mut fresh = served.take().filter(is_usable).unwrap_or_else(FuzzedServer::start);
        fresh.count += 1;
        fresh.converse(&conversation, 0);
        *served = Some(fresh);
    });
}

/// What a frame means to either side; nothing here may panic.
fn check_frames(data: &[u8]) {
    let whole = frames(data, usize::MAX);
    assert_eq!(whole, frames(data, 1), "it makes a difference how the bytes arrive");
    assert_eq!(whole, frames(data, 7), "it makes a difference how the bytes arrive");
    for payload in std::iter::once(data).chain(whole.iter().map(|(_, _, payload)| &payload[..])) {
        if let Ok(hello) = Hello::read(payload) {
            let mut written = Vec::new();
            hello.write(&mut written);
            assert_eq!(Hello::read(&written).ok(), Some(hello));
        }
        Welcome::read(payload).ok();
        for encoding in [Encoding::Json, Encoding::Packed] {
            if let Ok(request) = Request::read(payload) {
                request.arguments(encoding).ok();
            }
            let Ok(value) = encoding.read(payload) else { continue };
            error_from_value(&value);
            let mut written = Vec::new();
            encoding.write(&value, &mut written);
            assert_eq!(encoding.read(&written).ok(), Some(value));
        }
        let rows = AnswerReader::new(Encoding::Records).rows(payload).unwrap_or_default();
        let reply = AnswerReader::new(Encoding::Records).reply(payload).ok();
        for item in rows.into_iter().chain(reply.and_then(|reply| reply.into_item().ok())) {
            if let Item::Document(document) = item {
                document.value().ok();
                document.to_json().ok();
            }
        }
    }
}

type OwnedFrame = (FrameKind, u32, Vec<u8>);

/// The frames up to the first malformed one.
fn frames(bytes: &[u8], step: usize) -> Vec<OwnedFrame> {
    let (mut buffer, mut found) = (FrameBuffer::new(1 << 16), Vec::new());
    for chunk in bytes.chunks(step.min(bytes.len().max(1))) {
        buffer.extend(chunk);
        loop {
            match buffer.next_frame() {
                Ok(Some(frame)) => found.push((frame.kind, frame.request, frame.payload.to_vec())),
                Ok(None) => break,
                Err(_) => return found,
            }
        }
    }
    found
}

fn hello(encoding: Encoding) -> Vec<u8> {
    let hello = Hello { versions: (VERSION, VERSION), encoding, credentials: Credentials::Token(token()) };
    let mut bytes = Vec::new();
    write_frame(&mut bytes, FrameKind::Hello, 0, |out| hello.write(out));
    bytes
}

fn build_conversation(given: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let encoding = *given.choose(&[Encoding::Json, Encoding::Packed, Encoding::Records])?;
    let mut bytes = hello(encoding);
    for request in 0..given.int_in_range(1..=6)? {
        let id = if given.ratio(7, 8)? { request } else { 0 };
        match given.int_in_range(0..=9)? {
            0 => write_frame(&mut bytes, FrameKind::Cancel, id, |_| ()),
            1 => write_frame(&mut bytes, FrameKind::Data, id, |out| out.extend_from_slice(b"data")),
            2 => write_frame(&mut bytes, FrameKind::Data, id, |_| ()),
            3 => {
                let kind = *given.choose(&[FrameKind::Ping, FrameKind::Credit, FrameKind::Pong, FrameKind::Reply])?;
                let payload = given.arbitrary::<[u8; 4]>()?;
                write_frame(&mut bytes, kind, id, |out| out.extend_from_slice(&payload));
            }
            _ => {
                let operation = *given.choose(Operation::ALL)?;
                let key = given.ratio(1, 3)?.then_some(WriteKey { lane: [given.arbitrary()?; 16], number: 1 });
                let (database, arguments) = (*given.choose(&["db", "db", "db", "db", "none", ""])?, arguments(given)?);
                write_frame(&mut bytes, FrameKind::Request, id, |out| {
                    Request::write(operation, database, key, &arguments, encoding, out);
                });
            }
        }
    }
    Ok(bytes)
}

fn arguments(given: &mut Unstructured<'_>) -> Result<Value> {
    let mut fields = Vec::new();
    for _ in 0..given.int_in_range(0..=6)? {
        let (name, values) = given.choose(&FIELDS)?;
        fields.push(format!("\"{name}\": {}", given.choose(values)?));
    }
    // A field that is chosen twice makes malformed JSON.
    Ok(format!("{{{}}}", fields.join(", ")).parse().unwrap_or_default())
}

/// A server, and the number of conversations it has had.
struct FuzzedServer {
    socket: PathBuf,
    count: usize,
    _server: Server,
    _runtime: tokio::runtime::Runtime,
    _directory: tempfile::TempDir,
}

impl FuzzedServer {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory for temporary files");
        let socket = directory.path().join("socket");
        let wire = Wire { unix: Some(socket.clone()), ..Wire::default() };
        let config = crate::config::Config { wire, durability: Durability::None, ..config(directory.path()) };
        let server = runtime.block_on(Server::start(config)).expect("a server");
        let served = FuzzedServer { socket, count: 0, _server: server, _runtime: runtime, _directory: directory };
        let insert = r#"{"op": "insert", "id": "a", "body": {"a": 1}}"#.parse().expect("an edit");
        for (operation, arguments) in [(Operation::CreateDatabase, &Value::Null), (Operation::Edit, &insert)] {
            let mut setup = hello(Encoding::Json);
            write_frame(&mut setup, FrameKind::Request, 1, |out| {
                Request::write(operation, "db", None, arguments, Encoding::Json, out);
            });
            let kinds: Vec<_> = served.converse(&setup, 2).iter().map(|(kind, ..)| *kind).collect();
            assert_eq!(kinds, [FrameKind::Welcome, FrameKind::Reply]);
        }
        served
    }

    /// Sends bytes, and returns the frames that answer them, at least so many.
    fn converse(&self, conversation: &[u8], answer_count: usize) -> Vec<OwnedFrame> {
        let mut stream = UnixStream::connect(&self.socket).expect("the server listens");
        stream.set_read_timeout(Some(QUIET_TIME)).expect("a timeout");
        let mut writing = stream.try_clone().expect("a second handle");
        let (mut buffer, mut answers, mut has_ended) = (FrameBuffer::new(FRAME_BYTES_MAX), Vec::new(), false);
        // Ending at once would cancel what runs.
        let end = |stream: &UnixStream| {
            stream.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
            stream.shutdown(Shutdown::Write).ok();
        };
        std::thread::scope(|scope| {
            // The server may close the connection before.
            scope.spawn(move || writing.write_all(conversation).ok());
            loop {
                match stream.read(buffer.space()) {
                    Ok(0) => break,
                    Ok(count) => buffer.add(count),
                    Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => break,
                    // A fuzzer's timer sends signals.
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) if answers.len() < answer_count => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && !has_ended => {
                        has_ended = true;
                        end(&stream);
                    }
                    Err(error) => panic!("the server does not end: {error}: {conversation:?}"),
                }
                while let Some(frame) = buffer.next_frame().expect("the server sends frames") {
                    answers.push((frame.kind, frame.request, frame.payload.to_vec()));
                }
            }
        });
        for (kind, _, payload) in answers.iter().filter(|(kind, ..)| *kind == FrameKind::Error) {
            let value = Encoding::Json.read(payload).or_else(|_| Encoding::Packed.read(payload));
            let error = error_from_value(&value.expect("an error is a value")).expect("an error");
            assert!(error.kind() != stemmadb::ErrorKind::Internal, "{kind:?} {error:?}: {conversation:?}");
        }
        answers
    }
}
