// SPDX-License-Identifier: Apache-2.0

package service

import (
	"compress/gzip"
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// measured is one row of SageServe's tables, in seconds.
type measured struct {
	model, hardware, tensorParallel string
	prompt, batch, output           float64
	prefill, token                  float64 // of the batch; of one decode step
}

// sageServe reads a table. unit is the unit of its times in seconds. With perToken,
// token_time is per token, otherwise per request.
func sageServe(t *testing.T, path string, unit float64, perToken bool) (out []measured) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // only read from
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(z).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	x := func(s string) float64 { v, _ := strconv.ParseFloat(s, 64); return v }
	for _, r := range rows[1:] {
		m := measured{r[0], r[1], r[10], x(r[2]), x(r[3]), x(r[4]), unit * x(r[7]), unit * x(r[8])}
		if !perToken {
			m.token /= m.output
		}
		out = append(out, m)
	}
	return out
}

// fitLine fits y = a + c·x by least squares.
func fitLine(x, y []float64) (a, c float64) {
	mx, my := mean(x), mean(y)
	xy, xx := 0.0, 0.0
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
	}
	c = xy / xx
	return my - c*mx, c
}

// fit returns the three numbers of a model: a line through the decode times of batches up
// to 32 at 512 prompt tokens, and the mean prefill rate of single prompts of 512 to 4096
// tokens. Batches of 64 are left out, because memory limits them.
func fit(rows []measured, hardware, tp string) (base, perSeq, prefill float64) {
	var b, token, rates []float64
	for _, r := range rows {
		if r.hardware != hardware || r.tensorParallel != tp || r.model == "bloom-176b" {
			continue
		}
		if r.prompt == 512 && r.output == 128 && r.batch <= 32 {
			b, token = append(b, r.batch), append(token, r.token)
		}
		if r.batch == 1 && r.output == 128 && r.prompt >= 512 && r.prompt <= 4096 {
			rates = append(rates, r.prompt/r.prefill)
		}
	}
	base, perSeq = fitLine(b, token)
	return base, perSeq, mean(rates)
}

func TestPresetsMatchMeasurements(t *testing.T) {
	dir := os.Getenv("GPUPILOT_TRACES")
	if dir == "" {
		t.Skip("no GPUPILOT_TRACES")
	}
	small := sageServe(t, filepath.Join(dir, "perf", "sageserve_Llama-3.1-8B-tp-2.csv.gz"), 1, false)
	large := sageServe(t, filepath.Join(dir, "perf", "sageserve_perf_model.csv.gz"), 1e-3, true)
	for _, x := range []struct {
		preset, hardware, tp string
		rows                 []measured
		half                 float64 // fp8 weights: half the bytes to read, twice the FLOP/s
	}{
		{"llama-8b", "a100-80gb", "2", small, 1},
		{"llama-70b", "h100-80gb", "2", large, 2},
		{"llama-70b-bf16", "h100-80gb", "4", large, 1},
	} {
		base, perSeq, prefill := fit(x.rows, x.hardware, x.tp)
		base, perSeq, prefill = base/x.half, perSeq/x.half, prefill*x.half
		m := preset(t, x.preset)
		t.Logf("%s: %.2f ms + %.3f ms a sequence, %.0f prompt tokens/s; the preset has %.2f, %.3f, %.0f",
			x.preset, 1e3*base, 1e3*perSeq, prefill, 1e3*m.StepBase, 1e3*m.StepPerSeq, m.Prefill)
		if math.Abs(m.StepBase/base-1) > 0.05 || math.Abs(m.StepPerSeq/perSeq-1) > 0.1 || math.Abs(m.Prefill/prefill-1) > 0.1 {
			t.Errorf("%s differs from the measurements", x.preset)
		}
	}
}
