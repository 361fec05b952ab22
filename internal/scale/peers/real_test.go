// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The models are compared with the real autoscalers. These need Go modules of their own, so
// questions and answers are exchanged in files, with one line of JSON each.
var (
	asking    = flag.Bool("ask", false, "compile and ask the real autoscalers, instead of reading their recorded answers from testdata")
	update    = flag.Bool("update", false, "with -ask, write the answers to testdata")
	sequences = flag.Int("sequences", 1000, "with -ask, the number of sequences for each autoscaler")
)

func TestHPAIsKubernetes(t *testing.T) {
	compare(t, real{"hpa", "../../../test/kube/podautoscaler/answer.sh", 400}, generateHPA)
}

func TestKPAIsKnative(t *testing.T) {
	compare(t, real{"kpa", "../../../test/knative/answer.sh", 120}, generateKPA)
}

// real is a real autoscaler: the command that runs it, and the number of its answers in
// testdata.
type real struct {
	name, command string
	recorded      int
}

// compare compares the model's answers with those of the real autoscaler.
func compare[Q any](t *testing.T, r real, generate func(seed uint64) (Q, []int)) {
	n := r.recorded
	if *asking {
		n = max(*sequences, r.recorded)
	}
	var questions [][]byte
	var model [][]int
	for seed := range uint64(n) {
		q, answer := generate(seed)
		line, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		questions, model = append(questions, line), append(model, answer)
	}
	steps, differ := 0, 0
	for i, a := range r.answers(t, questions) {
		steps += len(model[i])
		switch at := difference(model[i], a.Replicas); {
		case at >= 0:
			if differ++; differ <= 10 {
				t.Errorf("sequence %d, step %d: the model sets %v, the real one %v", i, at, model[i][at:min(at+1, len(model[i]))], a.Replicas[at:min(at+1, len(a.Replicas))])
			}
		case a.Question != crc32.ChecksumIEEE(questions[i]):
			t.Fatalf("sequence %d differs from the recorded one in testdata/%s.jsonl: record the answers with make peers UPDATE=1", i, r.name)
		}
	}
	t.Logf("%s: %d sequences, %d steps, %d sequences differ", r.name, n, steps, differ)
}

// difference returns the first index at which two lists differ; -1 if they are equal.
func difference(a, b []int) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}

// answer is the answer of the real autoscaler to the question with this checksum.
type answer struct {
	Question uint32
	Replicas []int
}

func (r real) answers(t *testing.T, questions [][]byte) []answer {
	file := filepath.Join("testdata", r.name+".jsonl")
	if !*asking {
		return read[answer](t, file, len(questions))
	}
	out := make([]answer, len(questions))
	for i, replicas := range read[[]int](t, r.ask(t, questions), len(questions)) {
		out[i] = answer{crc32.ChecksumIEEE(questions[i]), replicas}
	}
	if *update {
		write(t, file, out[:r.recorded])
	}
	return out
}

// ask runs the real autoscaler, and returns the file of its answers.
func (r real) ask(t *testing.T, questions [][]byte) (file string) {
	dir := t.TempDir()
	asked, answered := filepath.Join(dir, "questions"), filepath.Join(dir, "answers")
	if err := os.WriteFile(asked, append(bytes.Join(questions, []byte("\n")), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), r.command, asked, answered).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", r.command, err, out)
	}
	return answered
}

// read decodes a file of n lines.
func read[T any](t *testing.T, file string, n int) []T {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := make([]T, n)
	lines := json.NewDecoder(f)
	for i := range out {
		if err := lines.Decode(&out[i]); err != nil {
			t.Fatalf("%s: answer %d of %d: %v", file, i, n, err)
		}
	}
	if lines.More() {
		t.Fatalf("%s has more answers than the %d questions", file, n)
	}
	return out
}

func write[T any](t *testing.T, file string, values []T) {
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := bufio.NewWriter(f)
	lines := json.NewEncoder(w)
	for _, v := range values {
		if err := lines.Encode(v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
