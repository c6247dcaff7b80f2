//! Tests of the document readers, with input split at every possible boundary.

use super::*;

/// A stream that returns a few bytes per read, so that reads end within every kind of token.
struct Trickle {
    bytes: Vec<u8>,
    at: usize,
    step: usize,
}

impl Read for Trickle {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.step.min(into.len()).min(self.bytes.len() - self.at);
        into[..count].copy_from_slice(&self.bytes[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

fn read_with(
    bytes: &[u8],
    extension: &str,
    options: &InputOptions,
    step: usize,
) -> Result<Vec<(String, TextPosition)>> {
    let source = Source {
        input: Box::new(Trickle { bytes: bytes.to_vec(), at: 0, step }),
        name: "input".to_owned(),
        bytes: None,
        extension: Some(extension.to_owned()),
    };
    let mut documents = documents(source, options)?;
    let mut all = Vec::new();
    let mut text = Vec::new();
    while let Some(origin) = documents.next(&mut text)? {
        all.push((String::from_utf8_lossy(&text).into_owned(), origin.position));
        text.clear();
    }
    assert_eq!(documents.bytes_read(), bytes.len() as u64);
    Ok(all)
}

fn read(text: &str, extension: &str) -> Vec<String> {
    let options = InputOptions::default();
    let all = read_with(text.as_bytes(), extension, &options, 1000).unwrap();
    for step in [1, 2, 3, 7] {
        assert_eq!(read_with(text.as_bytes(), extension, &options, step).unwrap(), all, "step {step}");
    }
    all.into_iter().map(|(text, _)| text).collect()
}

fn refusal_of(bytes: &[u8], extension: &str, options: &InputOptions) -> String {
    let message = read_with(bytes, extension, options, 1000).unwrap_err().to_string();
    for step in [1, 2, 3, 7] {
        assert_eq!(read_with(bytes, extension, options, step).unwrap_err().to_string(), message, "step {step}");
    }
    message
}

fn refusal(text: &str, extension: &str) -> String {
    refusal_of(text.as_bytes(), extension, &InputOptions::default())
}

#[test]
fn json_lines() {
    assert_eq!(read("{\"a\":1}\n\n{\"b\":\"}\"}\r\n", "jsonl"), ["{\"a\":1}", "{\"b\":\"}\"}"]);
    assert_eq!(read("{\"a\":1}\n{\"b\":2}", ""), ["{\"a\":1}", "{\"b\":2}"]);
    assert_eq!(read("\u{feff}{\"a\":1}", "json"), ["{\"a\":1}"]);
    assert!(read("", "jsonl").is_empty());
    assert!(read(" \n ", "").is_empty());
}

#[test]
fn json_spread_over_lines() {
    let text = "{\n  \"a\": [1,\n 2]\n}\n{ \"b\": {} }";
    let all = read_with(text.as_bytes(), "json", &InputOptions::default(), 5).unwrap();
    assert_eq!(all[0], ("{\n  \"a\": [1,\n 2]\n}".to_owned(), TextPosition { line: 1, column: 1 }));
    assert_eq!(all[1], ("{ \"b\": {} }".to_owned(), TextPosition { line: 5, column: 1 }));
}

#[test]
fn json_lines_refused() {
    assert_eq!(refusal("{\"a\":1}\n[1]\n", "jsonl"), "line 2, column 1: expected a document, found an array");
    assert_eq!(refusal("{\"a\":1},\n{\"b\":1}", "jsonl"), "line 1, column 8: expected a document, found ','");
    assert_eq!(refusal("{\"a\":1}\n 12\n", "jsonl"), "line 2, column 2: expected a document, found a number");
    assert_eq!(refusal("hello", "jsonl"), "line 1, column 1: expected a document, found 'h'");
}

#[test]
fn json_arrays() {
    assert_eq!(read("[{\"a\":1},\n {\"b\":[2]} ]\n", "json"), ["{\"a\":1}", "{\"b\":[2]}"]);
    assert_eq!(read(" [{\"a\":1}]", "jsonl"), ["{\"a\":1}"]);
    assert!(read("[ ]", "json").is_empty());
}

#[test]
fn json_arrays_refused() {
    assert_eq!(refusal("[{},]", "json"), "line 1, column 5: expected a document, found ']'");
    assert_eq!(
        refusal("[{}\n{}]", "json"),
        "line 2, column 1: expected a comma or the end of the array, found an object"
    );
    assert_eq!(
        refusal("[{},{}", "json"),
        "line 1, column 7: expected a comma or the end of the array, found the end of the input"
    );
    assert_eq!(refusal("[{}] {}", "json"), "line 1, column 6: unexpected text after the end of the array");
    assert_eq!(refusal("[1]", "json"), "line 1, column 2: expected a document, found a number");
    assert_eq!(refusal("[", "json"), "line 1, column 2: expected a document, found the end of the input");
}

fn array_at(names: &[&str]) -> InputOptions {
    InputOptions { array_path: names.iter().map(|name| (*name).to_owned()).collect(), ..InputOptions::default() }
}

#[test]
fn array_nested_in_an_object() {
    let text =
        "{\"version\": 1, \"x\": {\"rows\": [9]}, \"skip\": [[{}], \"]}\"], \"rows\": [{\"a\":1},{\"a\":2}], \"z\": 1}";
    for step in [1, 2, 3, 1000] {
        let all = read_with(text.as_bytes(), "json", &array_at(&["rows"]), step).unwrap();
        assert_eq!(all.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(), ["{\"a\":1}", "{\"a\":2}"]);
    }
    let deeper = read_with(b"{\"a\": {\"b\": [{}]}}", "json", &array_at(&["a", "b"]), 1).unwrap();
    assert_eq!(deeper.len(), 1);
    assert_eq!(
        refusal_of(text.as_bytes(), "json", &array_at(&["nothing"])),
        "line 1, column 1: this object has no field \"nothing\""
    );
    assert_eq!(
        refusal_of(text.as_bytes(), "json", &array_at(&["version"])),
        "line 1, column 13: expected an array of documents, found a number"
    );
}

#[test]
fn tables() {
    assert_eq!(
        read("title,year,price,in print\nEmma,1815,1.50,true\n\"Moby \"\"Dick\"\"\",1851,,false\n", "csv"),
        [
            "{\"title\":\"Emma\",\"year\":1815,\"price\":1.50,\"in print\":true}",
            "{\"title\":\"Moby \\\"Dick\\\"\",\"year\":1851,\"in print\":false}"
        ]
    );
    assert_eq!(
        read("a,b\r\n\"x\r\ny\",2\r\n\r\n3,4", "csv"),
        ["{\"a\":\"x\\u000d\\u000ay\",\"b\":2}", "{\"a\":3,\"b\":4}"]
    );
    assert_eq!(read("a\tb\n1\tx,y\n", "tsv"), ["{\"a\":1,\"b\":\"x,y\"}"]);
    assert_eq!(read("a,b\n5\" pipe,\n", "csv"), ["{\"a\":\"5\\\" pipe\"}"]);
    assert_eq!(read("_id,n\n12,12\n", "csv"), ["{\"_id\":\"12\",\"n\":12}"]);
    assert_eq!(read("a,b\n1,2", ""), ["{\"a\":1,\"b\":2}"]);
    assert!(read("a,b\n", "csv").is_empty());
    assert!(read("", "csv").is_empty());
}

#[test]
fn cells_that_a_number_would_not_preserve_stay_text() {
    let table = "v\n007\n+1\n1.\n.5\n-0\n18446744073709551615\n18446744073709551616\n-9223372036854775809\n1e5\n\
                 1e999\nNaN\n\
                 -1.25\n0.1234567890123456789\n1_000\n 1\nTRUE\n-\n0\n1e\n";
    let expected = [
        "\"007\"",
        "\"+1\"",
        "\"1.\"",
        "\".5\"",
        "\"-0\"",
        "18446744073709551615",
        "\"18446744073709551616\"",
        "\"-9223372036854775809\"",
        "1e5",
        "\"1e999\"",
        "\"NaN\"",
        "-1.25",
        "\"0.1234567890123456789\"",
        "\"1_000\"",
        "\" 1\"",
        "\"TRUE\"",
        "\"-\"",
        "0",
        "\"1e\"",
    ];
    let expected: Vec<String> = expected.iter().map(|cell| format!("{{\"v\":{cell}}}")).collect();
    assert_eq!(read(table, "csv"), expected);
}

#[test]
fn tables_as_text_and_with_other_delimiters() {
    let options = InputOptions { text_columns: TextColumns::All, delimiter: Some(b';'), ..InputOptions::default() };
    let all = read_with(b"a;b;c\n1;;true\n", "csv", &options, 2).unwrap();
    assert_eq!(all[0].0, "{\"a\":\"1\",\"b\":\"\",\"c\":\"true\"}");
}

#[test]
fn some_columns_as_text() {
    let options = InputOptions { text_columns: TextColumns::Named(vec!["zip".to_owned()]), ..InputOptions::default() };
    let all = read_with(b"zip,n\n00501,1\n10001,2\n,3\n", "csv", &options, 2).unwrap();
    let texts: Vec<&str> = all.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["{\"zip\":\"00501\",\"n\":1}", "{\"zip\":\"10001\",\"n\":2}", "{\"zip\":\"\",\"n\":3}"]);
    let message = refusal_of(b"a,b\n1,2\n", "csv", &options);
    assert_eq!(message, "--text names \"zip\", which is not in the header");
}

#[test]
fn tables_refused() {
    assert_eq!(
        refusal("a,b\n1,2\n1,2,3\n", "csv"),
        "line 3, column 5: 3 cells in a row, but the header names 2 fields"
    );
    assert_eq!(refusal("a,b\n1\n", "csv"), "line 2, column 1: 1 cell in a row, but the header names 2 fields");
    assert_eq!(refusal("a,b\n1,\"2\n3,4\n", "csv"), "line 2, column 3: the quote that opens here is never closed");
    assert_eq!(
        refusal("a,b\n\"1\"x,2\n", "csv"),
        "line 2, column 4: expected a delimiter or the end of the line after the closing quote"
    );
    assert_eq!(refusal("a,a\n", "csv"), "line 1, column 3: the header names \"a\" twice");
    assert_eq!(refusal("a,,b\n", "csv"), "line 1, column 3: column 2 of the header has no name");
    let latin = refusal_of(b"a,b\n1,caf\xe9\n", "csv", &InputOptions::default());
    assert_eq!(latin, "line 2, column 3: this cell is not UTF-8");
}

#[test]
fn memory_stays_bounded_when_a_quote_or_brace_is_not_closed() {
    let mut table = b"a,b\n1,\"".to_vec();
    table.resize(DOCUMENT_BYTES_MAX + 1_000_000, b'x');
    let options = InputOptions::default();
    let message = read_with(&table, "csv", &options, 1 << 20).unwrap_err().to_string();
    assert_eq!(message, "line 2, column 3: the quote that opens here is not closed within 8 MB");

    let mut object = b"{\"a\":\"".to_vec();
    object.resize(3 * DOCUMENT_BYTES_MAX, b'x');
    let source = Source {
        input: Box::new(Trickle { bytes: object, at: 0, step: 1 << 20 }),
        name: String::new(),
        bytes: None,
        extension: None,
    };
    let mut text = Vec::new();
    documents(source, &options).unwrap().next(&mut text).unwrap();
    assert!(text.len() > DOCUMENT_BYTES_MAX && text.len() < DOCUMENT_BYTES_MAX + (1 << 20));
}

#[test]
fn compressed_input_is_refused() {
    assert_eq!(refusal_of(&[0x1f, 0x8b, 8, 0], "jsonl", &InputOptions::default()), "this is compressed with gzip");
}

#[test]
fn syntax_errors_name_the_position_in_the_file() {
    let syntax_error = |text: &str, extension: &str| {
        let source = Source {
            input: Box::new(std::io::Cursor::new(text.as_bytes().to_vec())),
            name: "input".to_owned(),
            bytes: None,
            extension: Some(extension.to_owned()),
        };
        let mut documents = documents(source, &InputOptions::default()).unwrap();
        let mut bytes = Vec::new();
        while let Some(origin) = documents.next(&mut bytes).unwrap() {
            if let Err(failure) = parse(&bytes, origin) {
                return failure.to_string();
            }
            bytes.clear();
        }
        panic!("no syntax error");
    };
    assert!(syntax_error("{\"a\":1}\n{\"é\": nul}\n", "jsonl").starts_with("line 2, column 10: "));
    assert!(syntax_error("[{\"a\":1},\n  {\"b\": 1,\n   \"b\": 2}]", "json").starts_with("line 3, column 4: "));
    // An unclosed bracket is reported where the next document begins.
    assert!(syntax_error("{\"a\":1\n{\"a\":2}\n{\"a\":3}\n", "jsonl").starts_with("line 2, column 1: "));
    // An unclosed quote is reported at the end of its line.
    assert!(syntax_error("{\"a\":\"x\n{\"a\":2}\n", "jsonl").starts_with("line 1, column 8: "));
}

#[test]
fn random_input_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let alphabet: &[u8] = b"{}[]\",:\\ \n\r\t01e.-atrue\xc3\xa9\xff\x00;";
    let options_list = [
        InputOptions::default(),
        array_at(&["a"]),
        InputOptions { text_columns: TextColumns::All, ..InputOptions::default() },
    ];
    for round in 0..20_000 {
        let bytes: Vec<u8> = (0..random(40)).map(|_| alphabet[random(alphabet.len())]).collect();
        let source = Source {
            input: Box::new(Trickle { bytes: bytes.clone(), at: 0, step: 1 + random(9) }),
            name: String::new(),
            bytes: None,
            extension: [None, Some("json"), Some("csv"), Some("tsv")][round % 4].map(str::to_owned),
        };
        let Ok(mut reader) = documents(source, &options_list[round % 3]) else { continue };
        let mut text = Vec::new();
        while let Ok(Some(origin)) = reader.next(&mut text) {
            // Each document consumes some input, so the loop ends.
            assert!(!text.is_empty());
            parse(&text, origin).ok();
            text.clear();
        }
        assert!(reader.bytes_read() <= bytes.len() as u64);
    }
}
