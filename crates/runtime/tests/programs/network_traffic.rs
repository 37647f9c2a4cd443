//! Packets for the programs of `network_programs`: Ethernet with tags or without, IPv4 and IPv6 with options, extension
//! headers and tunnels, transport headers whose checksums are right, questions to name servers, and packets cut short.

use crate::support::soak;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % n
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

fn sum(bytes: &[u8], start: u32) -> u32 {
    bytes.chunks(2).fold(start, |sum, w| sum + u32::from(u16::from_be_bytes([w[0], *w.get(1).unwrap_or(&0)])))
}

fn fold(mut sum: u32) -> [u8; 2] {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    (!(sum as u16)).to_be_bytes()
}

/// A transport header and what follows; its checksum over `pseudo`.
fn transport(random: &mut Random, proto: u8, pseudo: u32) -> Vec<u8> {
    const PORTS: [u16; 12] = [53, 53, 53, 80, 443, 443, 1024, 1025, 8080, 20_000, 40_000, 65_535];
    let (source, dest) = (random.of(&PORTS), random.of(&PORTS));
    let payload: Vec<u8> = (0..random.of(&[0usize, 1, 7, 20, 64, 200, 900])).map(|i| i as u8).collect();
    let mut all = Vec::new();
    match proto {
        6 => {
            let flags = random.of(&[0x02u8, 0x02, 0x10, 0x10, 0x18, 0x11, 0x04, 0x12, 0xc2]);
            let options: &[u8] = random.of(&[&[][..], &[2, 4, 5, 0xb4], &[1, 1, 8, 10, 0, 1, 2, 3, 4, 5, 6, 7]]);
            all.extend([source.to_be_bytes(), dest.to_be_bytes()].concat());
            all.extend([1, 2, 3, random.below(256) as u8, 5, 6, 7, 8]);
            all.extend([(5 + options.len() as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
            all.extend(options);
        }
        17 => {
            let dns = dest == 53;
            let payload = if dns { question(random) } else { payload.clone() };
            all.extend([source, dest, 8 + payload.len() as u16, 0].map(u16::to_be_bytes).concat());
            all.extend(payload);
        }
        1 => all.extend([random.of(&[8u8, 8, 0, 3, 11]), 0, 0, 0, 0x4e, random.below(4) as u8, 0, 1]),
        58 => all.extend([random.of(&[128u8, 129, 135]), 0, 0, 0, 1, 2, 3, 4]),
        _ => {}
    }
    if proto != 17 {
        all.extend(payload);
    }
    let at = match proto {
        6 => 16,
        17 => 6,
        1 | 58 => 2,
        _ => return all,
    };
    let pseudo = if proto == 1 { 0 } else { pseudo + u32::from(proto) + all.len() as u32 };
    // UDP over IPv4 may go without one.
    if proto != 17 || random.below(4) != 0 {
        let check = fold(sum(&all, pseudo));
        all[at..at + 2].copy_from_slice(&check);
    }
    all
}

/// A query, sometimes a damaged one.
fn question(random: &mut Random) -> Vec<u8> {
    let mut all = vec![0x12, random.below(256) as u8, random.of(&[1u8, 1, 1, 0x81, 0x29]), 0];
    all.extend([0, random.of(&[1u8, 1, 1, 1, 2]), 0, 0, 0, 0, 0, random.below(2) as u8]);
    for _ in 0..random.below(5) {
        let label: &[u8] =
            random.of(&[&b"www"[..], b"Example", b"com", b"net", b"a-very-long-label-of-many-letters", b"x"]);
        all.push(label.len() as u8);
        all.extend(label);
    }
    all.push(random.of(&[0u8, 0, 0, 0, 0, 64, 5]));
    all.extend([0, random.of(&[1u8, 28, 255]), 0, 1]);
    all.truncate(all.len() - random.of(&[0, 0, 0, 0, 1, 4]));
    all
}

const V4: [[u8; 4]; 9] = [
    [10, 0, 0, 1],
    [10, 0, 0, 2],
    [10, 1, 2, 3],
    [192, 168, 1, 1],
    [192, 168, 1, 77],
    [203, 0, 113, 9],
    [203, 0, 113, 9],
    [198, 51, 100, 1],
    [8, 8, 8, 8],
];

fn v6(random: &mut Random) -> [u8; 16] {
    let mut address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    (address[7], address[15]) = (random.below(2) as u8, random.below(3) as u8);
    address
}

fn internet(random: &mut Random, is_v6: bool, depth: u8) -> Vec<u8> {
    let proto = if is_v6 {
        random.of(&[6u8, 6, 17, 17, 58, 41, 47, 132])
    } else {
        random.of(&[6u8, 6, 6, 17, 17, 17, 1, 4, 47, 132])
    };
    let inner = |random: &mut Random, pseudo| match proto {
        4 | 41 if depth < 2 => internet(random, proto == 41, depth + 1),
        47 if depth < 2 => {
            let six = random.below(2) == 1;
            let kind = if six { [0x86, 0xdd] } else { [8, 0] };
            [&[random.of(&[0u8, 0x20]), 0], &kind[..], &internet(random, six, depth + 1)].concat()
        }
        _ => transport(random, proto, pseudo),
    };
    if is_v6 {
        let (source, dest) = (v6(random), v6(random));
        let inner = inner(random, sum(&source, sum(&dest, 0)));
        let (mut next, mut rest) = (proto, inner);
        for _ in 0..random.of(&[0, 0, 0, 1, 2, 3]) {
            let kind = random.of(&[0u8, 60, 43, 44, 51]);
            let mut header = match kind {
                44 => vec![next, 0, 0, random.of(&[0u8, 1, 8, 0x11]), 1, 2, 3, 4],
                51 => vec![next, 1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8],
                _ => vec![next, random.of(&[0u8, 0, 1]), 1, 2, 0, 0, 1, 0],
            };
            if kind != 44 && kind != 51 && header[1] == 1 {
                header.extend([5, 2, 0, 0, 0, 0, 1, 0]);
            }
            (next, rest) = (kind, [header, rest].concat());
        }
        let mut all = vec![0x60 | random.below(16) as u8, random.of(&[0u8, 0x1b]), 0, random.of(&[0u8, 9])];
        all.extend((rest.len() as u16).to_be_bytes());
        all.extend([next, random.of(&[64u8, 1])]);
        [&all[..], &source, &dest, &rest].concat()
    } else {
        let (source, dest) = (random.of(&V4), random.of(&V4));
        let inner = inner(random, sum(&source, sum(&dest, 0)));
        let options = random.of(&[0usize, 0, 0, 0, 0, 0, 0, 4, 12]);
        let len = 20 + options + inner.len();
        let fragment = random.of(&[0u16, 0, 0, 0, 0, 0x4000, 0x4000, 0x4000, 0x4000, 0x2000, 0x2010, 0x0010]);
        let mut header = vec![0x45 + (options / 4) as u8, random.below(256) as u8];
        header.extend((len as u16).to_be_bytes());
        header.extend([0x12, 0x34]);
        header.extend(fragment.to_be_bytes());
        header.extend([random.of(&[64u8, 64, 1]), proto, 0, 0]);
        header.extend([source, dest].concat());
        header.extend(std::iter::repeat_n(1u8, options));
        let check = fold(sum(&header, 0));
        header[10..12].copy_from_slice(&check);
        [header, inner].concat()
    }
}

/// Frames of every shape, whole, cut and damaged.
pub(crate) fn traffic() -> Vec<Vec<u8>> {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut all = Vec::new();
    for _ in 0..soak(900) {
        let six = random.below(3) == 0;
        let mut kind: &[u8] = if six { &[0x86, 0xdd] } else { &[8, 0] };
        let mut payload = internet(&mut random, six, 0);
        if random.below(25) == 0 {
            kind = &[8, 6];
        }
        let mut frame = vec![random.of(&[2u8, 2, 2, 1]), 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, random.below(3) as u8];
        for _ in 0..random.of(&[0, 0, 0, 0, 0, 0, 0, 0, 1, 2]) {
            frame.extend(random.of(&[&[0x81u8, 0][..], &[0x88, 0xa8]]));
            frame.extend([random.of(&[0u8, 0x20, 0xe1]), random.of(&[0u8, 5, 100])]);
        }
        frame.extend(kind);
        frame.append(&mut payload);
        if random.below(12) == 0 {
            let len = random.below(frame.len());
            frame.truncate(len.max(14));
        }
        if random.below(12) == 0 {
            let at = random.below(frame.len());
            frame[at] = random.below(256) as u8;
        }
        // Again, as flows do.
        for _ in 0..random.of(&[1, 1, 2]) {
            all.push(frame.clone());
        }
    }
    all
}
