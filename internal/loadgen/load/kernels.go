// SPDX-License-Identifier: Apache-2.0

package load

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
)

// frame is the part that all kernels share: parameters, stop time, windows and stamps.
//
//go:embed kernels.ptx.tmpl
var frame string

// kernel is one kernel in PTX, the driver's assembler language.
type kernel struct {
	Name    string
	Version string // of PTX; it decides which drivers can compile the kernel
	Target  string // the least compute capability

	Registers []string // what the parts below use
	Before    string   // once, before the first window
	Body      string   // one chunk of work of a warp
	After     string   // once, after the last window
	Spin      bool     // no work: the blocks are resident until the end

	threads int // of a block
	// perChunk is the work of one warp and chunk, for each iteration that params asks for: fused multiply-adds, or
	// bytes.
	perChunk float64
}

// text returns the kernel's PTX.
func (k kernel) text() string {
	var b strings.Builder
	// The template is ours and was parsed by the tests.
	if err := template.Must(template.New(k.Name).Parse(frame)).Execute(&b, k); err != nil {
		panic(err)
	}
	return b.String()
}

// The least versions that have what the kernels use: nanosleep, and mma of each capability.
const (
	ptxBase = "6.3"
	smBase  = "sm_70"
)

// chains is how many results of a warp do not depend on each other, so that the pipe never waits for one.
const chains = 8

func spinKernel() kernel {
	return kernel{Name: "spin", Version: ptxBase, Target: smBase, Spin: true, threads: 32}
}

// probeKernel measures the least step of the device's timer. It returns it as the work.
func probeKernel() kernel {
	return kernel{
		Name: "probe", Version: ptxBase, Target: smBase, threads: 32, Registers: []string{".b64 step"},
		Before: "\tmov.u64 step, 0x7fffffffffffffff;\n",
		Body: `TICK:
	mov.u64 u0, %globaltimer;
	setp.eq.u64 q, u0, now;
	@q bra TICK;
	sub.u64 u0, u0, now;
	min.u64 step, step, u0;
	bar.warp.sync 0xffffffff;
`,
		After: "\tmov.u64 work, step;\n",
	}
}

// repeat joins n parts, which f writes.
func repeat(n int, f func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(f(i))
	}
	return b.String()
}

// chunk repeats the lines of a loop as often as p_bytes says.
func chunk(lines string) string {
	return "\tcvt.u32.u64 k, bytes;\nCHUNK:\n" + lines + "\tsub.u32 k, k, 1;\n\tsetp.ne.u32 q, k, 0;\n\t@q bra CHUNK;\n"
}

// keep stores n results under a condition that never holds, but that the compiler cannot know, so that it does not remove
// the work. Iterations in p_bytes are at least 1. The stores are volatile, because they have one address: of plain ones,
// the compiler keeps the last, and removes the work of all others.
func keep(kind, register string, n int) string {
	return "\tsetp.ne.u64 sink, bytes, 0;\n\t@sink bra KEPT;\n" + repeat(n, func(i int) string {
		return fmt.Sprintf("\tst.volatile.global.%s [slot+48], %s%d;\n", kind, register, i)
	}) + "KEPT:\n"
}

// seeds fills 32-bit registers with different bits for each thread, masked to what the type needs. Random bits draw the
// power that real data draws; zeros draw much less.
func seeds(n int, set func(i int) string) string {
	return "\tmad.lo.u32 t1, ctaid, ntid, tid;\n\tmul.lo.u32 t1, t1, 747796405;\n" + repeat(n, func(i int) string {
		return "\tmad.lo.u32 t1, t1, 1664525, 1013904223;\n" + set(i)
	})
}

// fmaKernel is a pipe of fused multiply-adds in chains: v = a·v + c. p_arg holds a, which is -1 in the type: v then has
// two values in turn, without growing. The compiler does not know it, and cannot make a cheaper instruction of it.
func fmaKernel(f fma, seed func(v string) string) kernel {
	return kernel{
		Name: f.name, Version: ptxBase, Target: smBase, threads: pipeThreads, perChunk: float64(f.unroll * f.perInstruction * 32),
		Registers: []string{".b32 k", fmt.Sprintf(".%s a, v<%d>, c<%d>", f.register, chains, chains)},
		Before: f.loadA + seeds(2*chains, func(i int) string {
			if i < chains {
				return seed(fmt.Sprint("v", i))
			}
			return seed(fmt.Sprint("c", i-chains))
		}),
		Body: chunk(repeat(f.unroll, func(i int) string {
			v := i % chains
			return fmt.Sprintf("\tfma.rn.%s v%d, v%d, a, c%d;\n", f.suffix, v, v, v)
		})),
		After: keep(f.register, "v", chains),
	}
}

// fma is what the kernels of fmaKernel differ in.
type fma struct {
	name, suffix, register string
	loadA                  string // sets a from p_arg
	unroll                 int    // instructions of a chunk's iteration
	perInstruction         int    // multiply-adds of a thread
}

// pipeThreads is the size of a pipe kernel's blocks, one on each SM: four warps on each of its four schedulers, of half
// the registers, so that a second kernel fits beside it.
const pipeThreads = 512

func fp32Kernel() kernel {
	return fmaKernel(fma{"fp32", "f32", "f32", "\tcvt.u32.u64 lo, arg;\n\tmov.b32 a, lo;\n", 256, 1}, func(v string) string {
		return "\tshr.u32 t0, t1, 9;\n\tor.b32 t0, t0, 0x3f800000;\n\tmov.b32 " + v + ", t0;\n" // 1 to 2
	})
}

func fp64Kernel() kernel {
	return fmaKernel(fma{"fp64", "f64", "f64", "\tmov.b64 a, arg;\n", 64, 1}, func(v string) string {
		return "\tshr.u32 t0, t1, 12;\n\tor.b32 t0, t0, 0x3ff00000;\n\tmov.b64 " + v + ", {t1, t0};\n"
	})
}

func fp16Kernel() kernel {
	return fmaKernel(fma{"fp16", "f16x2", "b32", "\tcvt.u32.u64 a, arg;\n", 256, 2}, func(v string) string {
		return "\tand.b32 t0, t1, 0x83ff83ff;\n\tor.b32 " + v + ", t0, 0x3c003c00;\n"
	})
}

// tile is what a block reads at a time: 8 loads of 16 bytes a thread.
const (
	tileLoads = 8
	tileBytes = tileLoads * 16 * pipeThreads
)

// tiles sets the address of the block's first tile and the distance of its next one.
const tiles = `	shl.b32 t0, ctaid, 16;
	cvt.u64.u32 at, t0;
	shl.b32 t0, nctaid, 16;
	cvt.u64.u32 step, t0;
	cvt.u64.u32 u0, tid;
	shl.b64 u0, u0, 4;
	add.u64 base, data, u0;
`

// dramKernel reads p_bytes of p_data again and again, past the first-level cache. p_bytes is a multiple of a tile for each
// block. p_arg holds where each block ended, and the next kernel goes on there. One that began at the front again would
// read what the second-level cache still has: an H200 seemed to read 7.2 TB/s from a memory of 4.9 TB/s.
func dramKernel() kernel {
	return kernel{
		Name: "dram", Version: ptxBase, Target: smBase, threads: pipeThreads, perChunk: 32 * 16 * tileLoads,
		Registers: []string{fmt.Sprintf(".b32 x<%d>, sum0", 4*tileLoads), ".b64 base, at, step, saved"},
		Before: tiles + `	mov.u32 sum0, 0;
	cvt.u64.u32 u0, ctaid;
	shl.b64 u0, u0, 3;
	cvta.to.global.u64 saved, arg;
	add.u64 saved, saved, u0;
	ld.global.u64 u0, [saved];
	setp.eq.u64 q, u0, 0;
	@q bra FIRST;
	mov.u64 at, u0;
FIRST:
`,
		Body: "\tadd.u64 u1, base, at;\n" + repeat(tileLoads, func(i int) string {
			return fmt.Sprintf("\tld.global.cg.v4.u32 {x%d, x%d, x%d, x%d}, [u1+%d];\n", 4*i, 4*i+1, 4*i+2, 4*i+3, i*16*pipeThreads)
		}) + repeat(4*tileLoads, func(i int) string { return fmt.Sprintf("\txor.b32 sum0, sum0, x%d;\n", i) }) +
			"\tadd.u64 at, at, step;\n\tsetp.lt.u64 q, at, bytes;\n\t@q bra NEXT;\n\tsub.u64 at, at, bytes;\nNEXT:\n",
		After: keep("u32", "sum", 1) + "\t@!leader bra SAVED;\n\tst.global.u64 [saved], at;\nSAVED:\n",
	}
}

// fillKernel writes random bits to p_bytes of p_data, once.
func fillKernel() kernel {
	return kernel{
		Name: "fill", Version: ptxBase, Target: smBase, threads: pipeThreads, perChunk: 32 * 16 * tileLoads,
		Registers: []string{".b32 x<4>", ".b64 base, at, step"},
		Before:    tiles + seeds(4, func(i int) string { return fmt.Sprintf("\tmov.u32 x%d, t1;\n", i) }),
		Body: "\tsetp.ge.u64 q, at, bytes;\n\t@q bra DONE;\n\tadd.u64 u1, base, at;\n" + repeat(tileLoads, func(i int) string {
			return fmt.Sprintf("\tst.global.v4.u32 [u1+%d], {x0, x1, x2, x3};\n", i*16*pipeThreads) +
				repeat(4, func(j int) string { return fmt.Sprintf("\tmad.lo.u32 x%d, x%d, 1664525, 1013904223;\n", j, j) })
		}) + "\tadd.u64 at, at, step;\n",
	}
}

// vectorAddKernel adds two vectors of p_bytes FP32 numbers, which follow each other at p_data, to a third one.
func vectorAddKernel() kernel {
	return kernel{
		Name: "vectoradd", Version: ptxBase, Target: smBase, threads: vectorThreads,
		Registers: []string{".pred mine", ".f32 x, y", ".b64 xs, ys, zs"},
		Before: `	mad.lo.u32 t0, ctaid, ntid, tid;
	cvt.u64.u32 u0, t0;
	setp.lt.u64 mine, u0, bytes;
	shl.b64 u0, u0, 2;
	shl.b64 u1, bytes, 2;
	add.u64 xs, data, u0;
	add.u64 ys, xs, u1;
	add.u64 zs, ys, u1;
`,
		Body: `	@!mine bra NEXT;
	ld.global.cg.f32 x, [xs];
	ld.global.cg.f32 y, [ys];
	add.f32 x, x, y;
	st.global.f32 [zs], x;
NEXT:
	bar.warp.sync 0xffffffff;
`,
	}
}

// The sizes of NVIDIA's sample vectorAdd.
const (
	vectorLength  = 50_000
	vectorThreads = 256
)

// mma is a shape of the tensor cores' instruction.
type mma struct {
	name, version, target string
	a, b, d               int // registers of a thread: FP16 operands and FP32 sums
	m, n, k               int
	perInstruction        int // matrices: m8n8k4 has four, one for each eight threads
	least                 int // compute capability times 10
}

// mmas are the instructions by the least compute capability, the best first.
var mmas = []mma{
	{"mma.sync.m16n8k16", "7.0", "sm_80", 4, 2, 4, 16, 8, 16, 1, 80},
	{"mma.sync.m16n8k8", "6.5", "sm_75", 2, 1, 4, 16, 8, 8, 1, 75},
	{"mma.sync.m8n8k4", "6.4", "sm_70", 2, 2, 8, 8, 8, 4, 4, 70},
}

// mmaUnroll is how often a chunk goes through its eight results.
const mmaUnroll = 4

// tensorKernel multiplies 2 by 4 small matrices of registers to 8 sums, so that no instruction waits for the one before.
func tensorKernel(m mma) kernel {
	const rows, columns = 2, 4
	list := func(name string, from, n int) string {
		return "{" + strings.TrimSuffix(repeat(n, func(i int) string { return fmt.Sprintf("%s%d, ", name, from+i) }), ", ") + "}"
	}
	instruction := fmt.Sprintf("mma.sync.aligned.m%dn%dk%d.row.col.f32.f16.f16.f32", m.m, m.n, m.k)
	return kernel{
		Name: "tensor_" + m.target, Version: m.version, Target: m.target, threads: pipeThreads,
		perChunk: float64(mmaUnroll * rows * columns * m.m * m.n * m.k * m.perInstruction),
		Registers: []string{
			".b32 k", fmt.Sprintf(".b32 a<%d>, b<%d>", rows*m.a, columns*m.b),
			fmt.Sprintf(".f32 d<%d>", rows*columns*m.d),
		},
		Before: seeds(rows*m.a+columns*m.b, func(i int) string {
			to := fmt.Sprint("a", i)
			if i >= rows*m.a {
				to = fmt.Sprint("b", i-rows*m.a)
			}
			// Two numbers of ±0.5 to ±1.
			return "\tand.b32 t0, t1, 0x83ff83ff;\n\tor.b32 " + to + ", t0, 0x38003800;\n"
		}) + repeat(rows*columns*m.d, func(i int) string { return fmt.Sprintf("\tmov.f32 d%d, 0f00000000;\n", i) }),
		Body: chunk(repeat(mmaUnroll*rows*columns, func(i int) string {
			i %= rows * columns
			d := list("d", i*m.d, m.d)
			return fmt.Sprintf("\t%s %s, %s, %s, %s;\n", instruction, d, list("a", i/columns*m.a, m.a), list("b", i%columns*m.b, m.b), d)
		})),
		After: keep("f32", "d", rows*columns*m.d),
	}
}
