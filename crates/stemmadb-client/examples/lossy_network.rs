//! Compares QUIC with TCP, both encrypted, on a network that delays and loses packets.
//!
//! `just lossy-network` runs it in such networks. By itself: `unshare --net .ci/lossy-network --delay 20 --loss 1 --
//! target/release/examples/lossy_network`. Prints a row of a Markdown table for each question: the medians of the
//! repetitions over TCP and over QUIC, and their ratio.

use std::io::Read;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use stemmadb::{Query, Selector, field};
use stemmadb_client::{Client, ClientOptions, RemoteDatabase, TlsTrust};
use stemmadb_server::{Administrator, Config, Server, Tls, Wire};

/// Where servers listen, and where clients reach them.
const SERVER: [u8; 4] = [10, 9, 0, 1];
const CLIENT: &str = "10.9.0.2";
const REPETITIONS: usize = 7;
/// Readers that ask at the same time.
const READERS: usize = 16;
/// Questions of each.
const QUESTIONS: usize = 10;
const FILE_BYTES: usize = 2 << 20;
const DOCUMENTS: usize = 2_000;
const TIMEOUT: Duration = Duration::from_secs(120);

fn options(certificate: &std::path::Path) -> ClientOptions {
    ClientOptions::new().timeout(TIMEOUT).connect_timeout(TIMEOUT).trust(TlsTrust::File(certificate.to_owned()))
}

/// A question: its name, and how long it takes in milliseconds.
type Question = (&'static str, fn(&Connected) -> f64);

/// A transport.
struct Connected {
    url: String,
    options: ClientOptions,
    database: RemoteDatabase,
}

fn since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1_000.0
}

const QUESTIONS_ASKED: [Question; 6] = [
    ("connect, and read one document", |connected| {
        let start = Instant::now();
        let client = Client::connect_with(&connected.url, connected.options.clone()).expect("a server");
        client.database("shop").get("d1").expect("an answer").expect("a document");
        since(start)
    }),
    ("one read", |connected| {
        let start = Instant::now();
        connected.database.get("d1").expect("an answer").expect("a document");
        since(start)
    }),
    ("16 readers, 10 reads each: the slowest read", |connected| {
        std::thread::scope(|scope| {
            let read = |reader| scope.spawn(move || read_repeatedly(connected, reader));
            let readers: Vec<_> = (0..READERS).map(read).collect();
            readers.into_iter().map(|reader| reader.join().expect("a time")).fold(0.0, f64::max)
        })
    }),
    ("all 2,000 documents of 1 KiB", |connected| {
        let start = Instant::now();
        let found = connected.database.find(Query::new(Selector::everything())).run().expect("rows");
        assert_eq!(found.count(), DOCUMENTS + 1);
        since(start)
    }),
    ("50 documents sorted by a field", |connected| {
        let start = Instant::now();
        let query = Query::new(field("n").ge(0)).sort_descending("n").limit(50);
        assert_eq!(connected.database.find(query).documents().expect("rows").len(), 50);
        since(start)
    }),
    ("a file of 2 MiB", |connected| {
        let start = Instant::now();
        let mut file = connected.database.files().open("file", "content").expect("an answer").expect("a file");
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).expect("the content");
        assert_eq!(bytes.len(), FILE_BYTES);
        since(start)
    }),
];

/// The slowest of several reads, in milliseconds.
fn read_repeatedly(connected: &Connected, reader: usize) -> f64 {
    let mut slowest: f64 = 0.0;
    for n in 0..QUESTIONS {
        let start = Instant::now();
        let id = format!("d{}", (reader * 97 + n * 13) % DOCUMENTS);
        connected.database.get(&id).expect("an answer").expect("a document");
        slowest = slowest.max(since(start));
    }
    slowest
}

fn fill(client: &Client) {
    let database = client.create_database("shop").expect("a database");
    let edits = (0..DOCUMENTS).map(|n| stemmadb::Edit::Insert {
        id: stemmadb::DocumentId::new(format!("d{n}")).expect("an id"),
        body: stemmadb::Value::from_serialize(&serde_json::json!({"n": n, "text": "x".repeat(1_000)})).expect("JSON"),
    });
    database.bulk(edits.collect()).expect("an answer");
    let content: Vec<u8> = (0..FILE_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let owner = database.insert("file", &serde_json::json!({})).expect("a document");
    database.files().attach("file", &owner, "content", "application/octet-stream", &mut &content[..]).expect("a file");
}

fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let made = rcgen::generate_simple_self_signed(vec![CLIENT.to_owned()]).expect("a certificate");
    std::fs::write(path("certificate.pem"), made.cert.pem()).expect("a file");
    std::fs::write(path("key.pem"), made.signing_key.serialize_pem()).expect("a file");
    let address = Some(SocketAddr::from((SERVER, 5985)));
    let config = Config {
        address: ([127, 0, 0, 1], 0).into(),
        administrator: Some(Administrator { name: "root".into(), password: "secret".into() }),
        tls: Some(Tls { certificate: path("certificate.pem"), key: path("key.pem") }),
        wire: Wire { address, quic: address, ..Wire::default() },
        ..Config::new(path("databases"))
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let server = runtime.block_on(Server::start(config)).expect("a server");
    let connect = |scheme: &str| {
        let url = format!("{scheme}://root:secret@{CLIENT}:5985");
        let options = options(&path("certificate.pem"));
        let client = Client::connect_with(&url, options.clone()).expect("a server");
        (Connected { url, options, database: client.database("shop") }, client)
    };
    let (tcp, client) = connect("stemma+tls");
    fill(&client);
    let (quic, _client) = connect("stemma+quic");
    for (name, ask) in QUESTIONS_ASKED {
        let (mut of_tcp, mut of_quic) = (Vec::new(), Vec::new());
        // Once before, so that connections are open.
        ask(&tcp);
        ask(&quic);
        for _ in 0..REPETITIONS {
            of_tcp.push(ask(&tcp));
            of_quic.push(ask(&quic));
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            (times[REPETITIONS / 2], times[0], times[REPETITIONS - 1])
        };
        let ((tcp, tcp_min, tcp_max), (quic, quic_min, quic_max)) = (median(&mut of_tcp), median(&mut of_quic));
        println!(
            "| {name} | {tcp:.0} ms ({tcp_min:.0} to {tcp_max:.0}) | {quic:.0} ms ({quic_min:.0} to {quic_max:.0}) \
             | {:.2} |",
            tcp / quic
        );
    }
    runtime.block_on(server.stop());
}
