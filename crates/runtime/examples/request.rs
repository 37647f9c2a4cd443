//! Plug-ins on a request: the host's own struct as context, and host functions with types.
//!
//! A program is given a [`Request`]: it may set the verdict, read the headers and change the body, and it calls `log`
//! with bytes, `quota` for the caller's counter in a map, and `limits` for numbers that the host changes while programs
//! run. Everything it does is verified: there is no `unsafe` here. `cargo run -p bpf-runtime --example request`

use bpf_runtime::{
    BpfContext, Caller, Config, ContextBytes, ContextBytesMut, Engine, HelperError, Linker, Program, SharedBytes,
    host::{Pinned, PinnedMap},
    isa::assemble,
    maps::{Map, MapDef, MapType},
};

/// The context of plug-ins: a request. `Request::c_struct()` is the header for their authors.
#[derive(BpfContext)]
#[repr(C)]
struct Request<'p> {
    user: u32,
    #[bpf(writable)]
    verdict: u32,
    headers: ContextBytes<'p>,
    body: ContextBytesMut<'p>,
}

/// The state of a worker, lent to each run.
#[derive(Default)]
struct Worker {
    logged: Vec<Vec<u8>>,
}

/// Refuses users whose quota is spent; else counts the request, logs the first header bytes and blanks the first byte
/// of the body.
const PROGRAM: &str = "
    r6 = r1
    r1 = *(u32 *)(r6 + 0)
    call 1002                       ; quota(user)
    if r0 == 0 goto refuse
    r7 = r0
    call 1003                       ; limits()
    if r0 == 0 goto refuse
    r2 = *(u64 *)(r0 + 0)
    r1 = *(u64 *)(r7 + 0)
    if r1 >= r2 goto refuse
    r1 += 1
    *(u64 *)(r7 + 0) = r1
    r1 = *(u64 *)(r6 + 8)           ; headers
    r2 = *(u64 *)(r6 + 16)          ; headers_end
    r3 = r1
    r3 += 4
    if r3 > r2 goto refuse
    r2 = 4
    call 1001                       ; log(headers, 4)
    r1 = *(u64 *)(r6 + 24)          ; body
    r2 = *(u64 *)(r6 + 32)          ; body_end
    r3 = r1
    r3 += 1
    if r3 > r2 goto done
    r0 = 42
    *(u8 *)(r1 + 0) = r0
done:
    r0 = 200
    goto end
refuse:
    r0 = 429
end:
    *(u32 *)(r6 + 4) = r0
    exit";

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::new(Config::new())?;
    let counts = Map::create(MapDef::new("counts", MapType::Hash, 4, 8, 100), engine.domain())?;
    counts.update(&7u32.to_ne_bytes(), &0u64.to_ne_bytes(), 0)?;
    let quota: PinnedMap<u32, u64> = PinnedMap::new(&counts)?;
    let limits: Pinned<[u64; 1]> = Pinned::new(&engine, &[2]);

    let mut linker = Linker::<Worker>::new(&engine);
    let shared = limits.clone();
    linker
        .func(1001, "log", |c: &mut Caller<'_, Worker>, bytes: SharedBytes<'_>| -> Result<(), HelperError> {
            if c.host().logged.len() == 10 {
                return Err(HelperError::new("the log is full"));
            }
            c.host().logged.push(bytes.to_vec());
            Ok(())
        })?
        .func(1002, "quota", move |c: &mut Caller<'_, Worker>, user: u32| quota.lookup(c, &user))?
        .func(1003, "limits", move |_: &mut Caller<'_, Worker>| Some(shared.clone()))?;

    println!("{}", Request::c_struct());
    let source: Vec<&str> = PROGRAM.lines().map(|line| line.split(" ;").next().unwrap_or("")).collect();
    let program: Program<Request, Worker> = linker.loader().insns("plug_in", assemble(&source.join("\n"))?)?;

    let mut worker = Worker::default();
    let mut run = |user: u32| -> Result<(u32, Vec<u8>), Box<dyn std::error::Error>> {
        let mut body = b"a body".to_vec();
        let mut request = Request {
            user,
            verdict: 0,
            headers: ContextBytes::new(b"GET /index.html")?,
            body: ContextBytesMut::new(&mut body)?,
        };
        program.run(&mut worker, &mut request)?;
        Ok((request.verdict, body))
    };
    assert_eq!(run(7)?, (200, b"* body".to_vec()));
    assert_eq!(run(7)?, (200, b"* body".to_vec()));
    assert_eq!(run(7)?, (429, b"a body".to_vec()), "two are allowed");
    assert_eq!(run(8)?, (429, b"a body".to_vec()), "nobody knows user 8");
    limits.set(&[3]);
    assert_eq!(run(7)?.0, 200, "and now three");
    assert_eq!(worker.logged, vec![b"GET ".to_vec(); 3]);
    println!("user 7 made {:?} requests", counts.get(&7u32.to_ne_bytes())?);
    Ok(())
}
