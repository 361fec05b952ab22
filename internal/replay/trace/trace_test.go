// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	requestsCSV = "t_ms,prompt_tokens,output_tokens\n0,374,44\n4315,396,109\n4542,879,55\n"
	countsCSV   = "t_s,requests,prompt_tokens,output_tokens\n0,2,400,44\n1,0,0,0\n2,4,4000,400\n"
	windowsCSV  = "t_s,rate_rps,active_clients,iat_cv_rate_weighted,prompt_tokens_mean,output_tokens_mean,token_mean_rate_coverage,gap\n0,10,43,2,355,293,0.68,0\n600,0,0,,,,,1\n1200,20,43,1,355,293,0.68,0\n"
	clientsCSV  = "client,t_s,rate_rps,iat_cv,iat_dist,p1,p2,prompt_tokens_mean,output_tokens_mean\n61,0,8,2.1,Gamma,0.2,0.05,104,451\n7,0,2,1,Weibull,0.9,0.05,104,451\n61,600,0,0,,,,,\n7,600,5,1,Weibull,1.2,1,100,50\n"
	coarseCSV   = "t_s,timestamp,count_in_5min\n0,2014-04-10 00:04:00,94\n300,2014-04-10 00:09:00,56\n"
)

func TestReadFormats(t *testing.T) {
	for _, x := range []struct {
		in       string
		kind     Kind
		duration float64
		expect   float64 // requests
	}{
		{requestsCSV, Requests, 4.543, 3},
		{countsCSV, Counts, 3, 6},
		{windowsCSV, Windows, 1800, 6000 + 6000 + 12000},
		{clientsCSV, Clients, 1200, 6000 + 3000},
		{coarseCSV, Coarse, 600, 150},
	} {
		tr, err := Read("x", strings.NewReader(x.in))
		if err != nil {
			t.Errorf("%s: %v", x.kind, err)
			continue
		}
		if tr.Kind != x.kind || math.Abs(tr.Duration-x.duration) > 1e-9 {
			t.Errorf("%s of %g s, want %s of %g s", tr.Kind, tr.Duration, x.kind, x.duration)
		}
		got := count(t, NewArrivals(tr, 0, tr.Duration, 1))
		if math.Abs(got-x.expect) > 3*math.Sqrt(150)+1 {
			t.Errorf("%s: %g requests, want %g", x.kind, got, x.expect)
		}
		if got := count(t, scaled(tr, 2.5)); math.Abs(got-2.5*x.expect) > 4*math.Sqrt(400)+1 {
			t.Errorf("%s scaled: %g requests, want %g", x.kind, got, 2.5*x.expect)
		}
	}
}

func scaled(t *Trace, factor float64) *Arrivals {
	a := NewArrivals(t, 0, t.Duration, 1)
	a.Factor = factor
	return a
}

// count counts all requests, and checks that they are in order and within their slices.
func count(t *testing.T, a *Arrivals) (n float64) {
	t.Helper()
	begin := 0.0
	for {
		q, until, ok := a.Next()
		if !ok {
			return n
		}
		last := begin
		for i := range q {
			if q[i].At < last || q[i].At >= until || q[i].Prompt < 1 || q[i].Output < 1 {
				t.Fatalf("request %+v after %g in the slice from %g to %g", q[i], last, begin, until)
			}
			last = q[i].At
		}
		n += float64(len(q))
		begin = until
	}
}

func TestReadErrorsHavePositions(t *testing.T) {
	for in, want := range map[string]string{
		"":                                                       "the file is empty",
		"a,b\n1,2\n":                                             "x:1: no trace has the columns a,b",
		"t_s,requests\n0,1\n1,-4":                                `x:3:3: column "requests": "-4"`,
		"t_s,requests\n0,1\n1,":                                  `x:3:3: column "requests": is empty`,
		"t_s,requests\n0,1\n0,1\n1,1":                            `x:3:1: column "t_s": "0" is also the time of the row above: want one row per time`,
		"t_s,requests\n0,1\n120,1\n60,1":                         `x:4:1: column "t_s": "60" is before the time of the row above: sort the rows by t_s, because a row lasts until the next one`,
		"t_s,count_in_5min\n300,1\n0,1":                          `x:3:1: column "t_s": "0" is before the time of the row above`,
		"t_s,rate_rps\n300,1\n0,1":                               `x:3:1: column "t_s": "0" is before the time of the row above`,
		"t_s,requests\n0,1\n1700000000,1\n":                      `column "t_s": the rows cover 107.8 years`,
		"t_s,requests\n1700000000000,1\n":                        `x:2:1: column "t_s": "1700000000000" is not a time: want seconds since the first row or since 1970`,
		"t_s,requests\nnoon,1\n":                                 `"noon" is not a time`,
		"t_s,requests\n,1\n":                                     `"" is not a time`,
		"PAR1\x15\x00\x15":                                       "the file is binary",
		"\xff\xfet\x00_\x00s\x00":                                "the file is binary",
		string(zipped(countsCSV)[:20]):                           "the gzip file is truncated",
		string(zipped(countsCSV)[:5]):                            "the gzip file is truncated",
		"t_ms,prompt_tokens,output_tokens\n0,1,1\n1e12,1,1\n":    `column "t_ms": the rows cover 31.7 years`,
		"t_s,requests\n0,1\n":                                    "1 rows",
		"t_ms,prompt_tokens,output_tokens\n0,1,NaN\n":            `x:2:5: column "output_tokens": "NaN"`,
		"t_ms,prompt_tokens,output_tokens\n1e400,1,1\n":          `x:2:1: column "t_ms"`,
		strings.Replace(clientsCSV, "Weibull", "Pareto", 1):      `x:3:9: column "iat_dist": "Pareto"`,
		strings.Replace(clientsCSV, "Gamma", "gamma", 1):         `x:2:12: column "iat_dist": "gamma" is not a known distribution: want Gamma, Weibull or Exponential`,
		strings.Replace(clientsCSV, "Gamma,0.2", ",0.2", 1):      `x:2:12: column "iat_dist": no distribution for a rate of 8: want Gamma, Weibull or Exponential, or a rate of 0`,
		strings.Replace(clientsCSV, "Gamma,0.2", "Gamma,", 1):    `x:2:18: column "p1": "" is not a shape of Gamma: want 0.001 to 1e+09`,
		strings.Replace(clientsCSV, "Gamma,0.2", "Gamma,0", 1):   `x:2:18: column "p1": "0" is not a shape of Gamma`,
		strings.Replace(clientsCSV, ",0,,,,,", ",0,Zipf,,,,", 1): `x:4:12: column "iat_dist": "Zipf" is not a known distribution: want`,
		"t_s,requests\n0,1,2\n":                                  "wrong number of fields",
		"t_s,rate_rps,gap\n0,,1\n600,,1\n":                       "every row is a gap",
		"\x1f\x8bgarbage garbage":                                "gzip",
	} {
		_, err := Read("x", strings.NewReader(in))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "x") {
			t.Errorf("%q: %v, want %q", Excerpt(in), err, want)
		}
	}
}

func TestReadGzip(t *testing.T) {
	whole := zipped("\ufeff" + requestsCSV)
	tr, err := Read("x", bytes.NewReader(whole))
	if err != nil || len(tr.requests) != 3 {
		t.Errorf("%v, %v", tr, err)
	}
	for n := 2; n < len(whole); n++ {
		if _, err := Read("x", bytes.NewReader(whole[:n])); err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

// A file with any damaged byte is reported as corrupt, and not as truncated: whether the
// decompression fails first or a row is invalid.
func TestReadCorruptGzip(t *testing.T) {
	rows := "t_ms,prompt_tokens,output_tokens\n"
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 400 {
		rows += fmt.Sprintf("%d,%d,%d\n", 40*i+rng.IntN(40), rng.IntN(3000), rng.IntN(500))
	}
	whole := zipped(rows)
	want, err := Read("x", bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for i := 2; i < len(whole); i++ {
		b := bytes.Clone(whole)
		b[i] ^= []byte{0x01, 0x40, 0xff}[i%3]
		tr, err := Read("x", bytes.NewReader(b))
		switch {
		case err == nil && !slices.Equal(tr.requests, want.requests): // some bits of the header do not matter
			t.Errorf("byte %d: read as other requests", i)
		case err != nil && (!strings.HasPrefix(err.Error(), "x: the gzip file is corrupt") || strings.Contains(err.Error(), "truncated")):
			t.Errorf("byte %d: %v", i, err)
		}
	}
	for n := len(whole) - 1; n > 100; n -= 17 {
		if _, err := Read("x", bytes.NewReader(whole[:n])); err == nil || !strings.Contains(err.Error(), "truncated") || strings.Contains(err.Error(), "corrupt") {
			t.Errorf("the first %d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func zipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.Bytes()
}

// Seconds since any moment, milliseconds and timestamps give the same load.
func TestTimesAreRelative(t *testing.T) {
	for _, in := range []string{
		"t_s,requests\n0,2\n60,0\n120,4\n",
		"t_s,requests\n1700000000,2\n1700000060,0\n1.70000012e9,4\n",
		"t_s,requests\n2023-11-14T22:13:20Z,2\n2023-11-14T23:14:20+01:00,0\n2023-11-14T22:15:20.000Z,4\n",
	} {
		tr, err := Read("x", strings.NewReader(in))
		if err != nil || tr.Duration != 180 || tr.windows[2].start != 120 || tr.windows[2].rate*60 != 4 {
			t.Errorf("%s: %+v, %v", in, tr, err)
		}
	}
	tr, err := Read("x", strings.NewReader("t_ms,prompt_tokens,output_tokens\n1700000004000,1,1\n1700000000000,1,1\n"))
	if err != nil || tr.requests[1].At != 4 {
		t.Errorf("%+v, %v", tr, err)
	}
}

// Requests with equal timestamps are spread until the next timestamp.
func TestCoarseTimestampsAreSpread(t *testing.T) {
	q := []Request{{At: 0}, {At: 0}, {At: 0}, {At: 3}, {At: 3}, {At: 3}, {At: 9}, {At: 9}, {At: 9}}
	spread(q)
	for i, want := range []float64{0, 1, 2, 3, 4, 5, 9, 10, 11} {
		if math.Abs(q[i].At-want) > 1e-9 {
			t.Errorf("request %d at %g, want %g", i, q[i].At, want)
		}
	}
}

func TestDistributions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, shape := range []float64{0.2, 0.5, 1, 4} {
		const n = 200_000
		sum, squares := 0.0, 0.0
		for range n {
			x := gamma(rng, shape)
			sum += x
			squares += x * x
		}
		m := sum / n
		if v := squares/n - m*m; math.Abs(m/shape-1) > 0.03 || math.Abs(v/shape-1) > 0.1 {
			t.Errorf("Gamma(%g): mean %.3f, variance %.3f", shape, m, v)
		}
	}
	sum := 0.0
	for range 100_000 {
		sum += tokens(rng, 500, 1) / 100_000
	}
	if math.Abs(sum/500-1) > 0.05 {
		t.Errorf("tokens around 500 have a mean of %.1f", sum)
	}
}

// variation is the squared coefficient of variation of the times between requests.
func variation(a *Arrivals) (c2 float64, n int) {
	var last, sum, squares float64
	for {
		q, _, ok := a.Next()
		if !ok {
			mean := sum / float64(n)
			return squares/float64(n)/(mean*mean) - 1, n
		}
		for i := range q {
			x := q[i].At - last
			sum, squares, n, last = sum+x, squares+x*x, n+1, q[i].At
		}
	}
}

// A load that is scaled down is that of fewer users: their requests are thinned, whether single
// requests or distributions were recorded. A load that is scaled up keeps its bursts.
func TestScaledLoadKeepsItsBurstiness(t *testing.T) {
	for _, kind := range []string{"Gamma,0.05", "Weibull,0.4"} {
		var text strings.Builder
		text.WriteString("client,t_s,rate_rps,iat_dist,p1,prompt_tokens_mean,output_tokens_mean\n")
		for i := range 8 {
			fmt.Fprintf(&text, "a,%d,50,%s,100,10\n", 3600*i, kind)
		}
		tr, err := Read("x", strings.NewReader(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		recorded, all := variation(NewArrivals(tr, 0, tr.Duration, 1))
		for _, p := range []float64{0.5, 0.1, 3} {
			a := NewArrivals(tr, 0, tr.Duration, 2)
			a.Factor = p
			got, n := variation(a)
			want := recorded
			if p < 1 {
				want = 1 + p*(recorded-1)
			}
			if math.Abs(got/want-1) > 0.25 || math.Abs(float64(n)/float64(all)/p-1) > 0.1 {
				t.Errorf("%s, scaled by %g: a squared variation of %.1f with %d requests, want %.1f with %.0f", kind, p, got, n, want, p*float64(all))
			}
		}
	}
	// Single requests: three copies of a burst are a burst.
	var text strings.Builder
	text.WriteString("t_ms,prompt_tokens,output_tokens\n")
	for i := range 200 {
		for k := range 40 {
			fmt.Fprintf(&text, "%d,100,10\n", 20_000*i+25*k)
		}
	}
	tr, err := Read("x", strings.NewReader(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	within := func(factor float64) (most int) {
		a := NewArrivals(tr, 0, tr.Duration, 3)
		a.Factor = factor
		second := map[int]int{}
		for {
			q, _, ok := a.Next()
			if !ok {
				break
			}
			for i := range q {
				second[int(q[i].At)]++
			}
		}
		for _, n := range second {
			most = max(most, n)
		}
		return most
	}
	if one, three := within(1), within(3); one != 40 || three < 100 {
		t.Errorf("%d requests in the busiest second, and %d of three times as many", one, three)
	}
}

// All recorded traces can be read, if they are there.
func TestRecordedTraces(t *testing.T) {
	dir := os.Getenv("GPUPILOT_TRACES")
	if dir == "" {
		t.Skip("no GPUPILOT_TRACES")
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.csv.gz"))
	for _, f := range files {
		tr, err := Open(f)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: %s, %.1f h, %d requests, %d windows", tr.Name, tr.Kind, tr.Duration/3600, len(tr.requests), len(tr.windows))
	}
}

func FuzzRead(f *testing.F) {
	for _, in := range []string{
		requestsCSV, countsCSV, windowsCSV, clientsCSV, coarseCSV, "\x1f\x8b\x08", "t_s,requests\n0,1e9\n1e8,1\n",
		"t_s,requests\n1700000000,2\n1700000060.5,0\n", "t_s,rate_rps\n2023-11-14T22:13:20Z,2\n2023-11-14T23:14:20+01:00,1\n",
		"t_s,requests\n0,1\n120,1\n60,1\n", "PAR1\x00", string(zipped(countsCSV)[:30]),
	} {
		f.Add([]byte(in))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, err := Read("fuzz", bytes.NewReader(b))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz") {
				t.Errorf("the error %q does not name the file", err)
			}
			return
		}
		if !(tr.Duration > 0) || math.IsInf(tr.Duration, 0) {
			t.Fatalf("a trace of %g s", tr.Duration)
		}
		expect := float64(len(tr.requests))
		for _, w := range tr.windows {
			if !(w.width > 0) || !(w.rate >= 0) || w.prompt < 1 || w.output < 1 {
				t.Fatalf("window %+v", w)
			}
			expect += w.rate * w.width
		}
		if expect < 1e5 && len(tr.windows) < 1e4 && tr.Duration < 1e6 {
			count(t, NewArrivals(tr, 0, tr.Duration, 1))
		}
	})
}
