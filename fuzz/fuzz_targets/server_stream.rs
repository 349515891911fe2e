//! Any bytes are read as the chunked answer of a server, in parts of any size; the whole and the parts say the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmprof::server::parts::{Body, Data, Events};

fn read(parts: &mut dyn Iterator<Item = &[u8]>) -> Option<Vec<String>> {
    let (mut body, mut events, mut said) = (Body::chunked(), Events::default(), Vec::new());
    for part in parts {
        let mut out = Vec::new();
        body.decode(part, &mut out).ok()?;
        events.feed(&out, &mut |data| said.push(format!("{:?}", Data::read(data))));
    }
    events.finish(&mut |data| said.push(format!("{:?}", Data::read(data))));
    Some(said)
}

fuzz_target!(|input: (u8, &[u8])| {
    let (size, bytes) = input;
    let whole = read(&mut std::iter::once(bytes));
    let parts = read(&mut bytes.chunks(usize::from(size).max(1)));
    assert_eq!(whole, parts);
});
