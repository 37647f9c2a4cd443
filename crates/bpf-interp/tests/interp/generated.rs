//! Generated programs: the interpreter against the kernel, where bpf(2) is permitted; and arbitrary programs, each of
//! which must end in a result or an error.
//!
//! `BPF_SOAK=N` multiplies the number of programs by N.

use bpf_interp::{Caller, Env, Machine, Memory, Options, Stop, StopKind};
use bpf_isa::Program;
use bpf_testkit::generate::{self, Choices, Generated, HELPER_ID, Shape};
#[cfg(target_os = "linux")]
use bpf_testkit::kernel::{self, RawProgram};

struct Host<'p>(std::marker::PhantomData<&'p Program>);

impl<'p> Env for Host<'p> {
    type Code = &'p Program;

    fn helper(&mut self, id: u32, args: [u64; 5], caller: &mut Caller<'_, '_, &'p Program>) -> Result<u64, Stop> {
        if id == HELPER_ID { Ok(generate::helper(args)) } else { Err(caller.stop(StopKind::UnknownHelper(id))) }
    }
}

/// Runs on a copy of the memory, aligned to 8 bytes; returns r0 and the memory.
fn interpret(program: &Program, bytes: &[u8], budget: Option<u64>) -> (Result<u64, Stop>, Vec<u8>) {
    let mut buffer = vec![0u8; bytes.len() + 7];
    let skip = buffer.as_ptr().align_offset(8);
    let data = &mut buffer[skip..skip + bytes.len()];
    data.copy_from_slice(bytes);
    let mut memory = Memory::new();
    let args = [memory.add_writable(data), bytes.len() as u64];
    memory.set_packet(args[0], args[1]);
    let options = Options { budget, ..Options::default() };
    let result = Machine::new(memory, options).run(&mut Host(std::marker::PhantomData), &program, args);
    (result, buffer[skip..skip + bytes.len()].to_vec())
}

fn soak(programs: u64) -> u64 {
    let times = std::env::var("BPF_SOAK").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    programs * times
}

#[test]
fn generated_programs_end_with_a_result() {
    let shape = Shape { packet_loads: true, ..Shape::default() };
    for seed in 0..soak(300) {
        let Generated { program, memory } = generate::from_seed(seed, &shape);
        let (first, after) = interpret(&program, &memory, None);
        let first = first.unwrap_or_else(|stop| panic!("seed {seed}: {stop}\n{program}"));
        // A second run has its memory at another address.
        let (second, after_second) = interpret(&program, &memory, None);
        assert_eq!((first, after), (second.expect("as the first"), after_second), "seed {seed}\n{program}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_kernel_agrees() {
    if let Err(why) = kernel::available() {
        return bpf_testkit::skipped("interpreter against the kernel", &why);
    }
    let shape = Shape::kernel();
    let (mut compared, mut refused) = (0, 0);
    for seed in 0..soak(300) {
        let Generated { program, memory } = generate::from_seed(seed, &shape);
        let Ok(loaded) = RawProgram::load(&program.to_bytes(), memory.len() as u32) else {
            refused += 1;
            continue;
        };
        let mut kernel_memory = memory.clone();
        let kernel = loaded.run(&mut kernel_memory, 1).expect("a test run");
        let (ours, our_memory) = interpret(&program, &memory, None);
        let ours = ours.unwrap_or_else(|stop| panic!("seed {seed}: {stop}\n{program}"));
        assert_eq!(ours as u32, kernel.result, "seed {seed}\n{program}");
        assert_eq!(our_memory, kernel_memory, "seed {seed}\n{program}");
        compared += 1;
    }
    assert!(compared > 9 * refused, "the kernel refused {refused} programs, compared were {compared}");
}

/// No sequence of bytes makes the interpreter panic or hang: it is refused, stops, or returns.
#[test]
fn wild_programs_do_no_harm() {
    let mut ran = 0;
    for seed in 0..soak(3000) {
        let bytes = generate::wild(&mut Choices::from_seed(seed));
        if let Ok(program) = Program::from_bytes(&bytes) {
            let (_, _) = interpret(&program, &[7; 32], Some(10_000));
            ran += 1;
        }
    }
    assert!(ran > 0, "no wild program was valid: nothing was tested");
}
