//! Access rules: questions of users who may read some of the documents, beside the same questions of an administrator
//! with the rule written into the selector, and beside PostgreSQL with row-level security.
//!
//! All are asked over TCP on one connection. Every answer's size is checked.

use std::time::Instant;

use serde_json::{Value, json};
use stemmadb::{DocumentId, Edit, Query, field};
use stemmadb_client::{Client, Credentials, RemoteDatabase};

use super::Bench;
use super::http::heading;
use crate::Result;
use crate::engine::shop::{PostgresServer, Transport};
use crate::harness::{Contender, Samples, Unit, measure_row};
use crate::server::ServerProcess;

const DATABASE: &str = "rules";
/// How many more documents there are than in the other rows.
const FACTOR: u64 = 5;
/// Documents that a batch inserts.
const BATCH_COUNT: u64 = 1_000;
/// Distinct values of `kind`, which is independent of the owner.
const KIND_COUNT: u64 = 10;
/// The most rows of a find and of a page.
const LIMIT: u64 = 25;
/// Questions per turn of a contender.
const TURN_COUNT: u64 = 60;
/// The target: how much longer a restricted user may wait than one who writes the rule into the question.
const EXPLICIT: f64 = 0.9;

/// Who may read which share of the documents: the name of the user, the label of the rows, and the numbers of documents
/// of which one is the user's.
const USERS: [(&str, &str, u64); 2] = [("few", "1 % visible", 100), ("half", "50 % visible", 2)];

/// A question.
#[derive(Clone, Copy)]
enum Question {
    Find,
    Count,
    Page,
}

impl Question {
    const ALL: [(&str, Question); 3] =
        [("find of 25", Question::Find), ("count", Question::Count), ("sorted page of 25", Question::Page)];

    /// Asks; returns the number of rows, or the count.
    fn ask(self, database: &RemoteDatabase, owner: Option<&str>, number: u64) -> Result<u64> {
        let kind = field("kind").eq(number % KIND_COUNT);
        let selector = match owner {
            Some(owner) => field("owner").eq(owner).and(kind),
            None => kind,
        };
        Ok(match self {
            Question::Find => database.find(Query::new(selector).limit(LIMIT)).run()?.count() as u64,
            Question::Count => database.find(selector).count()?,
            Question::Page => {
                database.find(Query::new(selector).sort_descending("n").limit(LIMIT)).run()?.count() as u64
            }
        })
    }

    /// The statement for PostgreSQL, whose policy adds the owner.
    fn statement(self) -> String {
        match self {
            Question::Find => format!("SELECT body FROM documents WHERE kind = $1 LIMIT {LIMIT}"),
            Question::Count => "SELECT count(*)::text FROM documents WHERE kind = $1".to_owned(),
            Question::Page => format!("SELECT body FROM documents WHERE kind = $1 ORDER BY n DESC LIMIT {LIMIT}"),
        }
    }
}

/// The owner of a document: a hundredth are those of `few`, half those of `half`.
fn owner(number: u64) -> &'static str {
    match number {
        number if number % 100 == 0 => "few",
        number if number % 2 == 1 => "half",
        _ => "others",
    }
}

fn body(number: u64) -> Value {
    // Documents of each owner have all kinds.
    let (kind, text) = (number / 100 % KIND_COUNT, format!("{number:08}").repeat(24));
    json!({"owner": owner(number), "kind": kind, "n": number, "text": text})
}

fn row_name(question: &str, share: &str) -> String {
    format!("access rule, {question}, {share}")
}

pub(super) fn run(bench: &mut Bench, server: &ServerProcess) -> Result<()> {
    let mut names = USERS.iter().flat_map(|(_, share, _)| Question::ALL.map(|(name, _)| row_name(name, share)));
    if !names.any(|name| bench.is_selected(&name)) {
        return Ok(());
    }
    // So that each owner has equally many documents of each kind.
    let document_count = (bench.scale.served_count * FACTOR).next_multiple_of(100 * KIND_COUNT);
    let admin = server.connect(Transport::Tcp)?;
    let database = admin.create_database(DATABASE)?;
    fill(&database, document_count)?;
    restrict(server, &admin)?;
    let postgres = PostgresServer::start_if_installed(&bench.scratch)?;
    if let Some(postgres) = &postgres {
        fill_postgres(postgres, document_count)?;
    }
    for (user, share, one_of) in USERS {
        let credentials = Credentials::Password { user: user.to_owned(), password: user.to_owned() };
        let restricted = server.connect_with(Transport::Tcp, credentials)?.database(DATABASE);
        let visible = document_count / one_of / KIND_COUNT;
        for (name, question) in Question::ALL {
            let row = row_name(name, share);
            if !bench.is_selected(&row) {
                continue;
            }
            let expected = if matches!(question, Question::Count) { visible } else { visible.min(LIMIT) };
            let mut contenders = vec![
                asking("stemma", expected, |number| question.ask(&restricted, None, number)),
                asking("explicit", expected, |number| question.ask(&database, Some(user), number)),
            ];
            if let Some(postgres) = &postgres {
                let mut client = postgres.connect(DATABASE, Transport::Tcp)?;
                client.batch_execute(&format!("SET ROLE reader; SET rules.name = '{user}'"))?;
                let statement = client.prepare(&question.statement())?;
                contenders.push(asking("postgresql-tcp", expected, move |number| {
                    let rows = client.query(&statement, &[&i32::try_from(number % KIND_COUNT)?])?;
                    Ok(match question {
                        Question::Count => rows.first().ok_or("no count")?.get::<_, &str>(0).parse()?,
                        _ => rows.len() as u64,
                    })
                }));
            }
            let mut heading = heading(bench, &row, Unit::Microseconds);
            heading.documents = document_count;
            heading.targets = vec![("explicit", EXPLICIT)];
            let measured = measure_row(heading, bench.scale.repetition_count, contenders)?;
            bench.push(measured)?;
        }
    }
    Ok(())
}

/// A contender whose turn is many questions, the first of which is not counted.
fn asking<'a>(name: &'static str, expected: u64, mut ask: impl FnMut(u64) -> Result<u64> + 'a) -> Contender<'a> {
    Contender::new(name, move |_, samples: &mut Samples| {
        for number in 0..=TURN_COUNT {
            let start = Instant::now();
            let found = ask(number)?;
            if found != expected {
                return Err(format!("{found} instead of {expected}").into());
            }
            if number > 0 {
                samples.push(start.elapsed().as_nanos() as f64);
            }
        }
        Ok(())
    })
}

fn fill(database: &RemoteDatabase, document_count: u64) -> Result<()> {
    for first in (0..document_count).step_by(BATCH_COUNT as usize) {
        let edit = |number: u64| -> Result<Edit> {
            let body = stemmadb::Value::from_serialize(&body(number))?;
            Ok(Edit::Insert { id: DocumentId::new(format!("doc-{number:07}"))?, body })
        };
        let edits = (first..(first + BATCH_COUNT).min(document_count)).map(edit).collect::<Result<Vec<_>>>()?;
        database.bulk(edits)?.into_iter().try_for_each(|inserted| inserted.map(drop))?;
    }
    Ok(())
}

/// Creates the users, and sets the rule.
fn restrict(server: &ServerProcess, admin: &Client) -> Result<()> {
    let users = admin.create_database("_users")?;
    for (name, ..) in USERS {
        let user = json!({"name": name, "type": "user", "roles": [], "password": name});
        users.insert(&format!("org.couchdb.user:{name}"), &user)?;
    }
    let names = USERS.map(|(name, ..)| name);
    let security = json!({
        "members": {"names": names, "roles": []},
        "access_rule": {"selector": {"owner": {"$user": "name"}}},
    });
    let path = format!("/{DATABASE}/_security");
    server.endpoint().expect_status(200, "PUT", &path, Some(&security.to_string())).map(drop)
}

/// The same documents in a table with a policy, and an index for each question.
fn fill_postgres(postgres: &PostgresServer, document_count: u64) -> Result<()> {
    postgres.create_database(DATABASE)?;
    let mut client = postgres.connect(DATABASE, Transport::Socket)?;
    client.batch_execute(
        "CREATE TABLE documents (id text PRIMARY KEY, owner text NOT NULL, kind int NOT NULL, n bigint NOT NULL, \
         body text NOT NULL)",
    )?;
    let mut transaction = client.transaction()?;
    let insert = transaction.prepare("INSERT INTO documents VALUES ($1, $2, $3, $4, $5)")?;
    for number in 0..document_count {
        let (id, kind) = (format!("doc-{number:07}"), i32::try_from(number / 100 % KIND_COUNT)?);
        let (n, body) = (i64::try_from(number)?, body(number).to_string());
        transaction.execute(&insert, &[&id, &owner(number), &kind, &n, &body])?;
    }
    transaction.commit()?;
    Ok(client.batch_execute(
        "CREATE INDEX ON documents (owner, kind, n); CREATE ROLE reader; GRANT SELECT ON documents TO reader; \
         ALTER TABLE documents ENABLE ROW LEVEL SECURITY; \
         CREATE POLICY visible ON documents USING (owner = current_setting('rules.name')); ANALYZE documents",
    )?)
}
