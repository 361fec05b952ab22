// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"compress/gzip"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

const s = time.Second

func TestShapes(t *testing.T) {
	f := func(name string, shape Shape, at time.Duration, want float64) {
		t.Helper()
		if got := shape.At(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("%s at %v: %v, want %v", name, at, got, want)
		}
	}
	f("constant", Constant{5, s}, 9*s, 5)
	ramp := Ramp{10, 20, 10 * s}
	f("ramp", ramp, -s, 10)
	f("ramp", ramp, 5*s, 15)
	f("ramp", ramp, 99*s, 20)
	f("a ramp of no length", Ramp{1, 2, 0}, 0, 2)
	seq := Sequence{ramp, Constant{20, 5 * s}, Ramp{20, 0, 10 * s}}
	f("sequence", seq, 5*s, 15)
	f("sequence", seq, 12*s, 20)
	f("sequence", seq, 20*s, 10)
	f("sequence", seq, 99*s, 0)
	f("an empty sequence", Sequence{}, s, 0)
	f("loop", Loop{ramp}, 25*s, 15)
	if d := seq.Duration(); d != 25*s {
		t.Errorf("the sequence lasts %v", d)
	}
}

// read is Open for a text.
func read(name string, r io.Reader, cfg ReplayConfig) (*Replay, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	counts, err := trace.ReadCounts(name, r, cfg.Column)
	if err != nil {
		return nil, err
	}
	return newReplay(name, counts, cfg)
}

const small = "t_s,requests,other\n0,10,x\n1,20,y\n2,0,z\n3,30,w\n"

func TestReplay(t *testing.T) {
	f := func(cfg ReplayConfig, at time.Duration, want float64) {
		t.Helper()
		r, err := read("f.csv", strings.NewReader(small), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.At(at); math.Abs(got-want) > 1e-9 {
			t.Errorf("%+v at %v: %v, want %v", cfg, at, got, want)
		}
	}
	f(ReplayConfig{}, 0, 10)
	f(ReplayConfig{}, 2*s, 20)
	f(ReplayConfig{}, 2500*time.Millisecond, 10)
	f(ReplayConfig{}, 99*s, 30)
	f(ReplayConfig{Speed: 2}, 2*s, 15)
	f(ReplayConfig{Speed: 100}, s, 15) // the whole recording within a second: its mean
	f(ReplayConfig{Peak: 3}, 4*s, 3)
	f(ReplayConfig{Peak: 60, Speed: 2}, s, 60) // the first and the last two seconds are the highest
	f(ReplayConfig{Smooth: 2 * s}, 4*s, 15)
	r, _ := read("f.csv", strings.NewReader(small), ReplayConfig{Speed: 4})
	if r.Duration() != s {
		t.Errorf("lasts %v, want 1s", r.Duration())
	}
}

func TestOpenGzip(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte("t_s,n\n100,5\n400,10\n")); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "counts") // gzip is detected by content, not by name
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Open(path, ReplayConfig{Column: "n"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Duration() != 600*s || math.Abs(r.At(599*s)-10.0/300) > 1e-9 {
		t.Errorf("lasts %v, ends at %v", r.Duration(), r.At(599*s))
	}
}

func TestErrorsNameFileLineAndColumn(t *testing.T) {
	f := func(in string, cfg ReplayConfig, want ...string) {
		t.Helper()
		_, err := read("f.csv", strings.NewReader(in), cfg)
		if err == nil {
			t.Fatalf("%q was accepted", in)
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q: %v; want %q in it", in, err, w)
			}
		}
	}
	f("", ReplayConfig{}, "f.csv", "empty")
	f("time,requests\n", ReplayConfig{}, "f.csv:1", `"t_s"`)
	f("t_s,count\n0,1\n1,2\n", ReplayConfig{}, "f.csv:1", `"requests"`, "count,t_s")
	f("t_s,requests\n0,1\n1,many\n", ReplayConfig{}, "f.csv:3:3", `"requests"`, `"many"`)
	f("t_s,requests\n0,1\n1,\n", ReplayConfig{}, "f.csv:3:3", "is empty")
	f("t_s,requests\n0,1\n1,-2\n", ReplayConfig{}, "f.csv:3:3")
	f("t_s,requests\n0,1\n1,NaN\n", ReplayConfig{}, "f.csv:3:3")
	f("t_s,requests\n5,1\n5,1\n", ReplayConfig{}, "f.csv:3:1", "greater than the previous 5")
	f("t_s,requests\n0,1,2\n", ReplayConfig{}, "f.csv", "line 2")
	f("t_s,requests\n0,1\n", ReplayConfig{}, "f.csv", "1 rows")
	f("t_s,requests\n0,0\n1,0\n", ReplayConfig{Peak: 5}, "f.csv", "all counts are 0")
	f("\x1f\x8bnot gzip at all", ReplayConfig{}, "f.csv", "gzip")
	f(small, ReplayConfig{Speed: -1}, "speed -1")
	if _, err := Open("/nowhere/f.csv", ReplayConfig{}); err == nil || !strings.Contains(err.Error(), "/nowhere/f.csv") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	for _, in := range []string{small, "t_s,requests\n0,1\n1e9,1e12\n", "\ufefft_s,requests\n\"0\",1\n2,3\n", "\x1f\x8b\x08"} {
		f.Add([]byte(in), 3.0)
	}
	f.Fuzz(func(t *testing.T, b []byte, speed float64) {
		r, err := read("fuzz", bytes.NewReader(b), ReplayConfig{Speed: speed, Peak: 50})
		if err != nil {
			if !strings.Contains(err.Error(), "fuzz") && !strings.Contains(err.Error(), "speed") {
				t.Errorf("the error %q does not name the file", err)
			}
			return
		}
		d := r.Duration()
		for _, at := range []time.Duration{-s, 0, d / 3, d / 2, d, d + s} {
			if x := r.At(at); math.IsNaN(x) || x < -1e-6 || x > 50*(1+1e-6) {
				t.Errorf("At(%v of %v) = %v, want 0 to 50", at, d, x)
			}
		}
	})
}
