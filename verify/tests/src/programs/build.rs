//! Compiling.

use super::Size;
use crate::harness::{run_in, shell};
use std::fmt::Write;
use std::path::Path;

/// A C program of 50 files with a Makefile, built in parallel, run, changed, built again.
pub fn make(dir: &Path, size: &Size) {
    let units = (size.files / 100).clamp(10, 500);
    let mut header = String::from("#pragma once\n");
    let mut main =
        String::from("#include \"all.h\"\n#include <stdio.h>\nint main(void) { long s = 0;\n");
    for i in 0..units {
        writeln!(header, "long f{i}(long x);").expect("string");
        writeln!(main, "s += f{i}({i});").expect("string");
        let mut unit = format!(
            "#include \"all.h\"\n#include <stdlib.h>\n#include <string.h>\nlong f{i}(long x) {{ long s = x;\n"
        );
        for j in 0..40 {
            writeln!(
                unit,
                "for (int k = 0; k < {j}; k++) s = s * 31 + k % {};",
                j + 2
            )
            .expect("string");
        }
        unit += "return s; }\n";
        std::fs::write(dir.join(format!("f{i}.c")), unit).expect("write");
    }
    main += "printf(\"%ld\\n\", s); return 0; }\n";
    std::fs::write(dir.join("all.h"), header).expect("write");
    std::fs::write(dir.join("main.c"), main).expect("write");
    let makefile = "OBJ := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: libf.a main.o\n\tgcc -o $@ main.o libf.a\n\
        libf.a: $(filter-out main.o,$(OBJ))\n\tar rcsD $@ $^\n%.o: %.c all.h\n\tgcc -O1 -frandom-seed=1 -c -o $@ $<\n\
        clean:\n\trm -f *.o *.a program\n";
    std::fs::write(dir.join("Makefile"), makefile).expect("write");
    run_in(dir, "make", &["-s", "-j4"]);
    let first = shell(dir, "./program");
    assert_eq!(
        run_in(dir, "make", &["-s", "-q"]),
        "",
        "nothing is out of date"
    );
    shell(dir, "sed -i 's/31/37/' f3.c && make -s -j4");
    assert_ne!(first, shell(dir, "./program"), "the change was built");
    shell(
        dir,
        "cp program kept && make -s clean && make -s -j4 && cmp program kept",
    );
}

/// `cargo build` of a copy of a crate (offline), with its own target directory.
pub fn cargo(dir: &Path, source: &Path) {
    let from = source.to_str().expect("plain path");
    shell(
        dir,
        &format!(
            "mkdir crate && cd '{from}' && tar -c --exclude=./target --exclude=./.git . | tar -x -C '{}'/crate",
            dir.display()
        ),
    );
    shell(
        &dir.join("crate"),
        "CARGO_TARGET_DIR=$PWD/target cargo build -q --offline",
    );
    shell(
        &dir.join("crate"),
        "CARGO_TARGET_DIR=$PWD/target cargo build -q --offline && rm -r target",
    );
}
