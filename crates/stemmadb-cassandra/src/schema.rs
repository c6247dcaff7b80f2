//! The tables, and the statements on them.
//!
//! A log has a partition with the names of its files. Each file that is appended to has a partition of its own (a
//! segment of the log has 64 MiB), and each 64 MiB of another file. Rows are never changed, and deleted only as whole
//! partitions.
//!
//! A conditional write is in one partition: the names carry the epoch of the owner, and so does every file that is
//! appended to, with its length. A row of an append counts once the length is beyond it: an append of many rows writes
//! them first, and becomes valid all at once.

use std::io;

use scylla::client::session::Session;
use scylla::errors::PrepareError;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

/// Bytes of a row at most.
pub(crate) const ROW_BYTES: u64 = 64 << 10;

/// Bytes of a file in one partition, if it is not appended to.
pub(crate) const PART_BYTES: u64 = 64 << 20;

/// The tables: names, and what is in their rows.
const TABLES: [(&str, &str); 6] = [
    (
        "names",
        "log text, name text, file uuid, bytes bigint, state tinyint, id uuid static, epoch bigint static, \
         PRIMARY KEY (log, name)",
    ),
    (
        "segments",
        "file uuid, offset bigint, writer bigint, bytes blob, epoch bigint static, length bigint static, \
         starts map<bigint, bigint> static, PRIMARY KEY (file, offset, writer)",
    ),
    ("contents", "file uuid, part int, offset bigint, bytes blob, PRIMARY KEY ((file, part), offset)"),
    ("members", "id uuid PRIMARY KEY, address text, beat bigint, lease_ms bigint"),
    ("owners", "database text PRIMARY KEY, member uuid, address text"),
    ("records", "space text, id text, value blob, version uuid static, PRIMARY KEY (space, id)"),
];

/// Creates keyspace and tables if they don't exist. Many servers may do so at once.
pub(crate) async fn create(session: &Session, keyspace: &str, replication: u8) -> io::Result<()> {
    let statement = format!(
        "CREATE KEYSPACE IF NOT EXISTS {keyspace} \
         WITH replication = {{'class': 'NetworkTopologyStrategy', 'replication_factor': {replication}}}"
    );
    session.query_unpaged(statement, ()).await.map_err(io::Error::other)?;
    // If it existed, it may be so new that not all nodes know it.
    session.await_schema_agreement().await.map_err(io::Error::other)?;
    for (table, rows) in TABLES {
        // A node that does not know the table yet creates it too. With different ids, those would be two tables, and
        // the rows of one would be lost.
        let id = Uuid::new_v5(&SPACE, format!("{keyspace}.{table}").as_bytes());
        let statement = format!("CREATE TABLE IF NOT EXISTS {keyspace}.{table} ({rows}) WITH id = {id}");
        session.query_unpaged(statement, ()).await.map_err(io::Error::other)?;
    }
    session.await_schema_agreement().await.map_err(io::Error::other)?;
    Ok(())
}

/// What the ids of tables are derived from.
const SPACE: Uuid = Uuid::from_u128(0x5a1c_66d4_2f0e_4b7b_9d3e_7361_6e64_6272);

/// The statements, prepared.
pub(crate) struct Statements {
    pub(crate) find_log: PreparedStatement,
    pub(crate) create_log: PreparedStatement,
    pub(crate) change_epoch: PreparedStatement,
    pub(crate) list_names: PreparedStatement,
    pub(crate) set_name: PreparedStatement,
    pub(crate) remove_name: PreparedStatement,
    pub(crate) logs: PreparedStatement,
    pub(crate) delete_log: PreparedStatement,
    pub(crate) segment_state: PreparedStatement,
    pub(crate) begin_segment: PreparedStatement,
    pub(crate) fence_segment: PreparedStatement,
    pub(crate) advance: PreparedStatement,
    pub(crate) put_frames: PreparedStatement,
    pub(crate) read_frames: PreparedStatement,
    pub(crate) delete_segment: PreparedStatement,
    pub(crate) put_content: PreparedStatement,
    pub(crate) read_content: PreparedStatement,
    pub(crate) delete_content: PreparedStatement,
    pub(crate) beat: PreparedStatement,
    pub(crate) members: PreparedStatement,
    pub(crate) forget_member: PreparedStatement,
    pub(crate) owner: PreparedStatement,
    pub(crate) first_owner: PreparedStatement,
    pub(crate) next_owner: PreparedStatement,
    pub(crate) release: PreparedStatement,
    pub(crate) records_version: PreparedStatement,
    pub(crate) records: PreparedStatement,
    pub(crate) change_records: PreparedStatement,
    pub(crate) put_record: PreparedStatement,
    pub(crate) remove_record: PreparedStatement,
}

impl Statements {
    pub(crate) async fn prepare(session: &Session, keyspace: &str) -> Result<Self, PrepareError> {
        // Names of tables without their keyspace would depend on the connection.
        let qualified = |text: &str| {
            let qualify = |text: String, (table, _): &(&str, &str)| {
                text.replace(&format!(" {table} "), &format!(" {keyspace}.{table} "))
            };
            TABLES.iter().fold(format!("{text} "), qualify)
        };
        let prepare = async |text: &str| session.prepare(qualified(text)).await;
        // Reads that complete conditional writes whose outcome is still open.
        let serial = async |text: &str| {
            prepare(text).await.map(|mut statement| {
                statement.set_consistency(Consistency::Serial);
                statement
            })
        };
        Ok(Statements {
            find_log: serial("SELECT id, epoch FROM names WHERE log = ? LIMIT 1").await?,
            create_log: prepare("INSERT INTO names (log, id, epoch) VALUES (?, ?, ?) IF NOT EXISTS").await?,
            change_epoch: prepare("UPDATE names SET epoch = ? WHERE log = ? IF epoch = ?").await?,
            list_names: serial("SELECT name, file, bytes, state FROM names WHERE log = ?").await?,
            set_name: prepare("INSERT INTO names (log, name, file, bytes, state) VALUES (?, ?, ?, ?, ?)").await?,
            remove_name: prepare("DELETE FROM names WHERE log = ? AND name = ?").await?,
            logs: prepare("SELECT DISTINCT log FROM names").await?,
            delete_log: prepare("DELETE FROM names WHERE log = ?").await?,
            segment_state: serial("SELECT epoch, length, starts FROM segments WHERE file = ? LIMIT 1").await?,
            begin_segment: prepare(
                "UPDATE segments SET epoch = ?, length = ?, starts = starts + ? WHERE file = ? IF epoch = null",
            )
            .await?,
            fence_segment: prepare(
                "UPDATE segments SET epoch = ?, starts = starts + ? WHERE file = ? IF epoch = ? AND length = ?",
            )
            .await?,
            advance: prepare("UPDATE segments SET length = ? WHERE file = ? IF epoch = ? AND length = ?").await?,
            put_frames: prepare("INSERT INTO segments (file, offset, writer, bytes) VALUES (?, ?, ?, ?)").await?,
            read_frames: prepare(
                "SELECT offset, writer, bytes FROM segments WHERE file = ? AND offset > ? AND offset < ?",
            )
            .await?,
            delete_segment: prepare("DELETE FROM segments WHERE file = ?").await?,
            put_content: prepare("INSERT INTO contents (file, part, offset, bytes) VALUES (?, ?, ?, ?)").await?,
            read_content: prepare(
                "SELECT offset, bytes FROM contents WHERE file = ? AND part = ? AND offset > ? AND offset < ?",
            )
            .await?,
            delete_content: prepare("DELETE FROM contents WHERE file = ? AND part = ?").await?,
            beat: prepare("INSERT INTO members (id, address, beat, lease_ms) VALUES (?, ?, ?, ?)").await?,
            members: prepare("SELECT id, address, beat, lease_ms FROM members").await?,
            forget_member: prepare("DELETE FROM members WHERE id = ?").await?,
            owner: serial("SELECT member, address FROM owners WHERE database = ?").await?,
            first_owner: prepare("INSERT INTO owners (database, member, address) VALUES (?, ?, ?) IF NOT EXISTS")
                .await?,
            next_owner: prepare("UPDATE owners SET member = ?, address = ? WHERE database = ? IF member = ?").await?,
            release: prepare("DELETE FROM owners WHERE database = ? IF member = ?").await?,
            records_version: serial("SELECT version FROM records WHERE space = ? LIMIT 1").await?,
            records: serial("SELECT id, value, version FROM records WHERE space = ?").await?,
            change_records: prepare("UPDATE records SET version = ? WHERE space = ? IF version = ?").await?,
            put_record: prepare("INSERT INTO records (space, id, value) VALUES (?, ?, ?)").await?,
            remove_record: prepare("DELETE FROM records WHERE space = ? AND id = ?").await?,
        })
    }
}
