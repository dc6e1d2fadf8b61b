//! The one answer that is made while it is sent.

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::node::Node;

const MIB: usize = 1 << 20;

async fn ask(node: &Node, pieces: Vec<Result<Bytes, String>>) -> (u16, String, usize) {
    let (sender, receiver) = mpsc::channel(pieces.len().max(1));
    for piece in pieces {
        sender.send(piece).await.unwrap();
    }
    drop(sender);
    node.fake.backups.lock().unwrap().push_back(receiver);
    let reply = node.post("/api/v1/backup", "").await;
    (reply.status, reply.head, reply.body.len())
}

#[tokio::test]
async fn a_backup_is_streamed_with_its_length_and_is_short_when_it_fails() {
    let node = Node::start().await;
    let quarter = || Ok(Bytes::from(vec![b'x'; MIB / 4]));
    let (status, head, len) = ask(&node, (0..4).map(|_| quarter()).collect()).await;
    assert_eq!((status, len), (200, MIB), "{head}");
    for line in [
        "content-type: application/x-tar",
        "content-length: 1048576",
        "content-disposition: attachment; filename=\"queen-7.tar\"",
    ] {
        assert!(head.lines().any(|found| found == line), "{line} in {head}");
    }
    for pieces in [
        vec![quarter(), Err("a file ends early".to_owned()), quarter(), quarter(), quarter()],
        vec![quarter(), quarter()],
        vec![],
    ] {
        let (_, _, len) = ask(&node, pieces).await;
        assert!(len < MIB, "{len}");
    }
    // The node is none the worse for it.
    assert_eq!(node.get("/status").await.status, 200);
}

#[tokio::test]
async fn a_second_one_is_refused_and_a_client_that_leaves_ends_it() {
    let node = Node::start().await;
    let reply = node.post("/api/v1/backup", "").await;
    assert_eq!((reply.status, &reply.json()["code"]), (409, &"backup_running".into()));
    assert_eq!(node.get("/api/v1/backup").await.status, 405);
    let (sender, receiver) = mpsc::channel(1);
    node.fake.backups.lock().unwrap().push_back(receiver);
    let mut stream = node.connect().await;
    let head = b"POST /api/v1/backup HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head).await.unwrap();
    sender.send(Ok(Bytes::from(vec![1; MIB / 4]))).await.unwrap();
    drop(stream);
    // Otherwise this waits for ever.
    sender.closed().await;
}
