//! The examples of `docs/wire-protocol.md`, byte by byte, and its tables.

use stemmadb::Value;
use stemmadb_wire::{Credentials, Encoding, FrameKind, Hello, Operation, Request, Welcome, WriteKey, write_frame};

const PAGE: &str = include_str!("../../../docs/wire-protocol.md");

/// The bytes of the examples, in order.
fn examples() -> Vec<Vec<u8>> {
    let blocks = PAGE.split("```hex\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let bytes = |block: &str| {
        let digits: String = block.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    };
    blocks.map(bytes).collect()
}

fn frame(kind: FrameKind, request: u32, payload: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_frame(&mut bytes, kind, request, payload);
    bytes
}

#[test]
fn examples_of_the_page_are_what_is_sent() {
    let hello = Hello { versions: (1, 1), encoding: Encoding::Json, credentials: Credentials::Anonymous };
    let welcome = Welcome { version: 1, frame_bytes_max: 64 << 20, server: "Stemma/0.1.0".into() };
    let id: Value = r#"{"id":"a"}"#.parse().unwrap();
    let edit: Value = r#"{"op":"delete","n":[-1,300,1.5,true,"ä"]}"#.parse().unwrap();
    let key = WriteKey { lane: [0; 16], number: 1 };
    let expected = [
        frame(FrameKind::Hello, 0, |out| hello.write(out)),
        frame(FrameKind::Welcome, 0, |out| welcome.write(out)),
        frame(FrameKind::Request, 1, |out| Request::write(Operation::Get, "shop", None, &id, Encoding::Json, out)),
        frame(FrameKind::Reply, 1, |out| Encoding::Json.write(&Value::Null, out)),
        frame(FrameKind::Request, 2, |out| {
            Request::write(Operation::Edit, "shop", Some(key), &edit, Encoding::Packed, out);
        }),
    ];
    let examples = examples();
    assert_eq!(examples.len(), expected.len());
    for (example, expected) in examples.iter().zip(&expected) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(example), hex(expected));
    }
}

#[test]
fn page_lists_every_operation() {
    for operation in Operation::ALL {
        let (name, code) = (format!("{operation:?}"), (*operation as u8).to_string());
        let is_row = |line: &&str| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let codes = cells.next().unwrap_or("").split(", ").any(|listed| listed == code);
            codes && cells.next().unwrap_or("").split(", ").any(|listed| listed == name)
        };
        assert!(PAGE.lines().any(|line| is_row(&line)), "{name} {code}");
    }
}
