// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// operations are the instructions that the kernels may use: the number of operands, and the least version of PTX and
// compute capability, as the PTX ISA has them.
var operations = []struct {
	pattern  string
	operands int
	version  float64
	target   int
}{
	{`ld\.param\.u64`, 2, 1, 0},
	{`cvta\.to\.global\.u64`, 2, 2, 20},
	{`mov\.(u32|u64|b32|b64|f32)`, 2, 1, 0},
	{`cvt\.(u64\.u32|u32\.u64)`, 2, 1, 0},
	{`(add|sub)\.(u32|u64|f32)`, 3, 1, 0},
	{`min\.u64`, 3, 1, 0},
	{`(shl|and|or|xor)\.b(32|64)`, 3, 1, 0},
	{`shr\.u(32|64)`, 3, 1, 0},
	{`mul\.lo\.u(32|64)`, 3, 1, 0},
	{`mad\.lo\.u32`, 4, 1, 0},
	{`setp\.(eq|ne|ge|lt)\.u(32|64)`, 3, 1, 0},
	{`bra`, 1, 1, 0},
	{`ret`, 0, 1, 0},
	{`barrier\.sync`, 1, 6, 30},
	{`bar\.warp\.sync`, 1, 6, 30},
	{`shfl\.sync\.idx\.b32`, 5, 6, 30},
	{`nanosleep\.u32`, 1, 6.3, 70},
	{`atom\.global\.cas\.b64`, 4, 1.2, 12},
	{`red\.global\.add\.u64`, 2, 1.2, 12},
	{`ld\.volatile\.global\.u64`, 2, 1, 0},
	{`ld\.global\.u64`, 2, 1, 0},
	{`ld\.global\.cg\.f32`, 2, 2, 20},
	{`ld\.global\.cg\.v4\.u32`, 2, 2, 20},
	{`st\.global\.(u32|u64|b32|f32|f64)`, 2, 1, 0},
	{`st\.volatile\.global\.(u32|b32|f32|f64)`, 2, 1.1, 0},
	{`st\.global\.v4\.u32`, 2, 1, 0},
	{`fma\.rn\.f32`, 4, 2, 20},
	{`fma\.rn\.f64`, 4, 1.4, 13},
	{`fma\.rn\.f16x2`, 4, 4.2, 53},
	{`mma\.sync\.aligned\.m8n8k4\.row\.col\.f32\.f16\.f16\.f32`, 4, 6.4, 70},
	{`mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16\.f16\.f32`, 4, 6.5, 75},
	{`mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16\.f16\.f32`, 4, 7, 80},
}

// specials are the special registers that the kernels may read.
var specials = []string{"%tid.x", "%ntid.x", "%ctaid.x", "%nctaid.x", "%laneid", "%smid", "%globaltimer", "%clock64"}

var (
	register  = regexp.MustCompile(`^\.reg \.(\w+) (.*)$`)
	bank      = regexp.MustCompile(`^(\w+)<(\d+)>$`)
	label     = regexp.MustCompile(`^([A-Z0-9_]+):$`)
	statement = regexp.MustCompile(`^(?:@(!?)(\w+) )?([a-z0-9_.]+)(?: (.*))?$`)
	word      = regexp.MustCompile(`%?[A-Za-z_][\w.]*|0[xfd][0-9A-Fa-f]+|-?\d+`)
)

// patterns are compiled once.
var patterns = map[string]*regexp.Regexp{}

func re(pattern string) *regexp.Regexp {
	if patterns[pattern] == nil {
		patterns[pattern] = regexp.MustCompile(pattern)
	}
	return patterns[pattern]
}

// lint checks what a compiler would refuse, and what it would accept though it is wrong.
func lint(ptx string) (errs []string) {
	fail := func(format string, args ...any) { errs = append(errs, fmt.Sprintf(format, args...)) }
	head := re(`^\.version (\d\.\d)\n\.target sm_(\d+)\n\.address_size 64\n\n\.visible \.entry (\w+)\(\n`).FindStringSubmatch(ptx)
	if head == nil {
		return []string{"the head is not version, target, address size and entry"}
	}
	version, _ := strconv.ParseFloat(head[1], 64)
	target, _ := strconv.Atoi(head[2])
	list, body, ok := strings.Cut(ptx[len(head[0]):], ")\n{\n")
	if body, ok2 := strings.CutSuffix(body, "\n}\n"); !ok || !ok2 {
		return []string{"the parameters or the body do not end"}
	} else if strings.ContainsAny(list, "{}") || strings.Count(body, "{") != strings.Count(body, "}") {
		fail("unbalanced braces")
	}
	body = strings.TrimSuffix(body, "\n}\n")
	known := map[string]string{} // name → type
	if n := strings.Count(list, ".param .u64 p_"); n != paramCount || strings.Count(list, ",") != n-1 {
		fail("%d parameters: Go passes %d", n, paramCount)
	}
	for _, name := range re(`p_\w+`).FindAllString(list, -1) {
		known[name] = "param"
	}
	labels, jumps := map[string]int{}, map[string]bool{}
	stored := map[string]bool{} // addresses that a plain store wrote since the last label
	for line := range strings.SplitSeq(body, "\n") {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "//")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if m := label.FindStringSubmatch(line); m != nil {
			labels[m[1]]++
			clear(stored)
			continue
		}
		line, ok := strings.CutSuffix(line, ";")
		if !ok || strings.Contains(line, ";") {
			fail("%q: one statement a line, with a semicolon", line)
			continue
		}
		if m := register.FindStringSubmatch(line); m != nil {
			declare(m[1], m[2], known, fail)
			continue
		}
		m := statement.FindStringSubmatch(line)
		if m == nil {
			fail("%q is no statement", line)
			continue
		}
		if m[2] != "" && known[m[2]] != "pred" {
			fail("%q: %s is no predicate", line, m[2])
		}
		if m[3] == "bra" {
			jumps[m[4]] = true
			continue
		}
		lintOperation(line, m[3], m[4], version, target, known, fail)
		if address, _, _ := strings.Cut(m[4], ","); strings.HasPrefix(m[3], "st.global.") {
			if stored[address] {
				fail("%q: the compiler removes the plain store before it, to the same address, with the work that led to it", line)
			}
			stored[address] = true
		}
	}
	for name, n := range labels {
		if n > 1 || !jumps[name] {
			fail("label %s: defined %d times, used: %v", name, n, jumps[name])
		}
	}
	for name := range jumps {
		if labels[name] == 0 {
			fail("no label %s", name)
		}
	}
	return errs
}

func declare(kind, names string, known map[string]string, fail func(string, ...any)) {
	for name := range strings.SplitSeq(names, ", ") {
		list := []string{name}
		if m := bank.FindStringSubmatch(name); m != nil {
			n, _ := strconv.Atoi(m[2])
			list = nil
			for i := range n {
				list = append(list, m[1]+strconv.Itoa(i))
			}
		}
		for _, r := range list {
			if known[r] != "" {
				fail("%s is declared twice", r)
			}
			known[r] = kind
		}
	}
}

func lintOperation(line, operation, operands string, version float64, target int, known map[string]string, fail func(string, ...any)) {
	i := slices.IndexFunc(operations, func(o struct {
		pattern  string
		operands int
		version  float64
		target   int
	},
	) bool {
		return re("^" + o.pattern + "$").MatchString(operation)
	})
	if i < 0 {
		fail("%q: unknown operation", line)
		return
	}
	o := operations[i]
	if version < o.version || target < o.target {
		fail("%q needs PTX %v for sm_%d", line, o.version, o.target)
	}
	flat := re(`[{\[][^}\]]*[}\]]`).ReplaceAllStringFunc(operands, func(s string) string { return strings.ReplaceAll(s, ",", " ") })
	if n := len(strings.Split(flat, ",")); operands != "" && n != o.operands || operands == "" && o.operands > 0 {
		fail("%q has %d operands, want %d", line, n, o.operands)
	}
	wide := map[bool]string{true: "64", false: "32"}
	for at, w := range word.FindAllString(operands, -1) {
		switch {
		case strings.HasPrefix(w, "%"):
			if !slices.Contains(specials, w) {
				fail("%q: no special register %s", line, w)
			}
		case w[0] >= '0' && w[0] <= '9' || w[0] == '-':
		case known[w] == "":
			fail("%q: %s is not declared", line, w)
		case strings.HasPrefix(operation, "setp") && (known[w] == "pred") != (at == 0):
			fail("%q: %s is %s", line, w, known[w])
		case re(`^(add|sub|mul\.lo|shl|xor|or|and|min|mad\.lo)\.`).MatchString(operation):
			// Registers have the size of the operation.
			if is64 := strings.HasSuffix(operation, "64"); !strings.HasSuffix(known[w], wide[is64]) {
				fail("%q: %s is %s", line, w, known[w])
			}
		}
	}
	for _, address := range re(`\[(\w+)`).FindAllStringSubmatch(operands, -1) {
		if t := known[address[1]]; t != "b64" && t != "param" {
			fail("%q: the address %s is %s", line, address[1], t)
		}
	}
}

func TestKernels(t *testing.T) {
	total := len(frame)
	for _, k := range allKernels() {
		for _, err := range lint(k.text()) {
			t.Errorf("%s: %s", k.Name, err)
		}
		total += len(k.text())
	}
	t.Logf("%d bytes of PTX", total)
	if total > 100_000 {
		t.Errorf("%d bytes of PTX, want at most 100 kB", total)
	}
	if tileBytes != 1<<16 {
		t.Errorf("a tile has %d bytes; the kernels shift by 16", tileBytes)
	}
}

// Every kernel ends by itself: the loop's first condition is the stop time.
func TestKernelsStop(t *testing.T) {
	for _, k := range allKernels() {
		if text := k.text(); !strings.Contains(text, "LOOP:") || !re(`setp\.ge\.u64 p, now, stop;\n\t@p bra DONE;`).MatchString(text) {
			t.Errorf("%s has no stop time", k.Name)
		}
	}
}

// The lint finds each kind of mistake.
func TestLint(t *testing.T) {
	good := fp32Kernel().text()
	for _, c := range [][2]string{
		{".version 6.3", ".version 5.0"},
		{".target sm_70", ".target sm_60"},
		{"\t.param .u64 p_last,\n", ""},
		{"barrier.sync 0;", "barrier.sync 0"},
		{"bra WORK;", "bra WERK;"},
		{"SHARED:\n", ""},
		{"CHUNK:\n", "CHUNK:\nCHUNK:\n"},
		{"fma.rn.f32 v0, v0, a, c0", "fma.rn.f32 v0, v0, a"},
		{"fma.rn.f32 v0, v0, a, c0", "fma.rn.f32 v0, v0, a, c9"},
		{"%smid", "%smids"},
		{"[slot+16], now", "[smid+16], now"},
		{"sub.u32 k, k, 1", "sub.u32 k, now, 1"},
		{"@q bra CHUNK", "@k bra CHUNK"},
		{"nanosleep.u32", "nanosleeps.u32"},
		{"setp.ge.u64 p, now, stop", "setp.ge.u64 now, now, stop"},
		{".address_size 64", ".address_size 32"},
		{"st.volatile.global.", "st.global."},
	} {
		if bad := strings.ReplaceAll(good, c[0], c[1]); bad == good || len(lint(bad)) == 0 {
			t.Errorf("%q for %q is not found", c[1], c[0])
		}
	}
}

// machineCode is the least count of an instruction that is the work of a kernel, for each iteration of its body. Step 0
// of mma.m8n8k4 stands for all four.
var machineCode = map[string]struct {
	instruction string
	count       int
	most        int // compute capability; later ones emulate the instruction
}{
	"fp32":         {`FFMA`, 256, 999},
	"fp64":         {`DFMA`, 64, 999},
	"fp16":         {`HFMA2(\.MMA)?`, 256, 999},
	"dram":         {`LDG\.E\.128`, tileLoads, 999},
	"fill":         {`STG\.E\.128`, tileLoads, 999},
	"vectoradd":    {`FADD`, 1, 999},
	"tensor_sm_70": {`HMMA\.884\.F32\.F32\.STEP0`, mmaUnroll * 8, 72},
	"tensor_sm_75": {`HMMA\.1688\.F32`, mmaUnroll * 8, 999},
	"tensor_sm_80": {`HMMA\.16816\.F32`, mmaUnroll * 8, 999},
}

// Where a CUDA toolkit is (Debian: nvidia-cuda-toolkit), its assembler checks each kernel for each compute capability, and
// its disassembler shows that the work is in the machine code.
func TestKernelsAssemble(t *testing.T) {
	ptxas, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("unchecked by ptxas: it is not on the PATH; the lint alone checked the kernels")
	}
	nvdisasm, disasmErr := exec.LookPath("nvdisasm")
	help, _ := exec.CommandContext(t.Context(), ptxas, "--help").CombinedOutput()
	for _, k := range allKernels() {
		file := filepath.Join(t.TempDir(), k.Name+".ptx")
		if err := os.WriteFile(file, []byte(k.text()), 0o600); err != nil {
			t.Fatal(err)
		}
		least, _ := strconv.Atoi(strings.TrimPrefix(k.Target, "sm_"))
		for _, sm := range []int{70, 75, 80, 86, 89, 90, 100, 120} {
			name := fmt.Sprint("sm_", sm)
			if sm < least || !strings.Contains(string(help), "'"+name+"'") {
				continue
			}
			if out, err := exec.CommandContext(t.Context(), ptxas, "-arch="+name, "-o", file+".cubin", file).CombinedOutput(); err != nil {
				t.Errorf("%s for %s: %v\n%s", k.Name, name, err, out)
				continue
			}
			want, ok := machineCode[k.Name]
			if !ok || sm > want.most || disasmErr != nil {
				continue
			}
			code, err := exec.CommandContext(t.Context(), nvdisasm, "-c", file+".cubin").Output()
			if err != nil {
				t.Errorf("%s for %s: %v", k.Name, name, err)
			}
			if n := len(re(`\b`+want.instruction+`[.\w]*\s`).FindAll(code, -1)); n < want.count {
				t.Errorf("%s for %s: %d of %d instructions %s are left", k.Name, name, n, want.count, want.instruction)
			}
		}
	}
}

// allKernels are the kernels that the program contains.
func allKernels() []kernel {
	all := []kernel{spinKernel(), probeKernel(), fp32Kernel(), fp64Kernel(), fp16Kernel(), dramKernel(), fillKernel(), vectorAddKernel()}
	for _, m := range mmas {
		all = append(all, tensorKernel(m))
	}
	return all
}
