//! What a command says when it cannot do its work, and what it never says.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};

use super::relay::{Fate, Relay};
use super::{Fresh, run, run_with};

/// Every command, with what it needs.
const COMMANDS: [&[&str]; 8] = [
    &["push", "q", "1"],
    &["pop", "q"],
    &["tail", "q"],
    &["queues"],
    &["groups"],
    &["dlq"],
    &["dlq", "replay", "x"],
    &["dlq", "purge", "q", "--yes"],
];

#[test]
fn a_wrong_address_is_said_at_once() {
    for command in COMMANDS {
        let done = run("http://127.0.0.1:1", command, b"");
        let said = done.failed();
        assert!(said.contains("cannot be reached (connection refused)"), "{said}");
        assert!(said.contains("--url or QUEEN_URL"), "{said}");
        assert_eq!(done.out, "");
    }
    for address in ["localhost", "ftp://localhost", "http://user:s3cr3t@localhost"] {
        let done = run(address, &["queues"], b"");
        assert!(done.failed().starts_with("the address (--url, QUEEN_URL) "), "{done:?}");
        assert!(!done.said.contains("s3cr3t"), "{done:?}");
    }
}

#[test]
fn an_option_counts_more_than_the_variable() {
    let fresh = Fresh::new(&[]);
    let done = run("http://127.0.0.1:1", &["queues", "--url", &fresh.url()], b"");
    assert_eq!(done.printed(), "no queues\n");
    assert_eq!(run(&format!("{}/", fresh.url()), &["queues"], b"").printed(), "no queues\n");
    let url = fresh.url();
    for purge in [
        ["dlq", "--url", &url, "purge", "q", "--yes"],
        ["dlq", "purge", "q", "--yes", "--url", &url],
    ] {
        let done = run("http://127.0.0.1:1", &purge, b"");
        assert_eq!(done.printed(), "deleted 0\n");
    }
    let misplaced = run(&url, &["dlq", "q", "purge", "q"], b"");
    assert!(misplaced.failed().starts_with("what belongs to replay or purge"), "{misplaced:?}");
    assert_eq!(run(&url, &["dlq", "--", "purge"], b"").printed(), "no dead letters\n");
}

#[test]
fn what_is_no_node_is_named() {
    let fresh = Fresh::new(&[]);
    for command in COMMANDS {
        for (status, expected) in [
            (200, "does not answer as a queen node does"),
            (404, "it is no queen node"),
            (302, "answers with a redirect (302)"),
        ] {
            let relay = Relay::new(fresh.node.address(), &[Fate::Page(status)]);
            let done = run(&relay.url(), command, b"");
            assert!(done.failed().contains(expected), "{command:?} {done:?}");
            assert!(!done.said.contains('\u{1b}'), "{done:?}");
        }
    }
    let busy = Relay::new(fresh.node.address(), &[Fate::Busy(503)]);
    let done = run(&busy.url(), &["queues"], b"");
    assert!(done.failed().ends_with("(503: timeout: busy): try again later\n"), "{done:?}");
}

#[test]
fn a_token_is_asked_for_and_never_shown() {
    const SECRET: &str = "a secret that is long enough for this";
    let fresh = Fresh::new(&[("JWT_ENABLED", "on"), ("JWT_SECRET", SECRET)]);
    let url = fresh.url();
    let token = |secret: &str, role: &str| {
        let key = EncodingKey::from_secret(secret.as_bytes()).unwrap();
        encode(&Header::default(), &json!({"sub": "me", "role": role}), &key).unwrap()
    };
    let ask = |token: &str, arguments: &[&str]| {
        let done = run_with(&[("QUEEN_URL", &url), ("QUEEN_TOKEN", token)], arguments, b"");
        if !token.is_empty() {
            assert!(!done.said.contains(token) && !done.out.contains(token), "{done:?}");
        }
        done
    };
    for command in COMMANDS {
        let done = ask("", command);
        assert!(done.failed().contains("asks for a token (Authentication required)"), "{done:?}");
        let done = ask(&token("another secret that is long enough", "admin"), command);
        assert!(done.failed().contains("does not accept the token"), "{done:?}");
    }
    let reader = token(SECRET, "read-only");
    assert_eq!(ask(&reader, &["queues"]).printed(), "no queues\n");
    let done = ask(&reader, &["push", "q", "1"]);
    assert!(done.failed().contains("does not allow this (Insufficient permissions)"), "{done:?}");
    let worker = token(SECRET, "read-write");
    assert_eq!(ask(&worker, &["push", "q", "1"]).printed(), "pushed 1, duplicates 0\n");
    let done = run(&url, &["queues", "--token", &worker], b"");
    assert!(done.printed().contains("\nq "), "{done:?}");
    let broken = ask("two\nlines", &["queues"]);
    assert!(broken.failed().contains("characters that no token has"), "{broken:?}");
    assert!(!ask(&worker, &["queues", "--help"]).out.contains("eyJ"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let fresh = Fresh::new(&[]);
    fresh.push("q", "p", &["1"]);
    for arguments in [
        &["queues"][..],
        &["queues", "q", "--json"],
        &["push", "q", "2"],
        &["pop", "q"],
        &["tail", "q", "--from", "start"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_queen"))
            .args(arguments)
            .env_clear()
            .env("QUEEN_URL", fresh.url())
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?} {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?} {output:?}");
    }
    // What nobody saw is not settled.
    let queues = fresh.node.ask("GET", "/api/v1/resources/queues", "");
    assert!(
        queues.contains(r#""processing":2,"completed":0"#)
            || queues.contains(r#""processing":1,"completed":0"#),
        "{queues}"
    );
}

#[test]
fn https_is_spoken_with_the_certificates_of_the_system() {
    let fresh = Fresh::new(&[]);
    let (url, keys) = tls_before(fresh.node.address().to_owned());
    let certificate = format!("{keys}/tls.crt.pem");
    let ask = |file: &str| {
        run_with(&[("QUEEN_URL", &url), ("SSL_CERT_FILE", file)], &["push", "q", "1"], b"")
    };
    assert_eq!(ask(&certificate).printed(), "pushed 1, duplicates 0\n");
    let none = ask(&format!("{keys}/tls.pem"));
    assert!(none.failed().contains("needs root certificates"), "{none:?}");
    let unknown = run(&url, &["queues"], b"");
    assert!(unknown.failed().contains("ertificate"), "{unknown:?}");
}

/// TLS in front of a node, and where its keys lie.
fn tls_before(node: String) -> (String, String) {
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../http/tests/keys");
    let chain = vec![CertificateDer::from_pem_file(keys.join("tls.crt.pem")).unwrap()];
    let key = PrivateKeyDer::from_pem_file(keys.join("tls.pem")).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, stream.unwrap());
            let mut request = vec![0; 65_536];
            // A client that does not trust the certificate sends none.
            let Ok(len) = read_request(&mut stream, &mut request) else { continue };
            let mut node = std::net::TcpStream::connect(&node).unwrap();
            let request = String::from_utf8(request[..len].to_vec()).unwrap();
            let request = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
            node.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            node.read_to_end(&mut answer).unwrap();
            stream.write_all(&answer).unwrap();
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        }
    });
    (format!("https://localhost:{port}"), keys.to_str().unwrap().to_owned())
}

/// Reads until the body of a push has ended.
fn read_request(stream: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut len = 0;
    while !buffer[..len].ends_with(b"]}") {
        match stream.read(&mut buffer[len..])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => len += more,
        }
    }
    Ok(len)
}
