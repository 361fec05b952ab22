// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/loadgen/calibration"
)

// Server is an inference server with OpenAI's API. It decodes as many sequences as requests are in flight.
type Server struct {
	URL    string
	Model  string // empty: the first one that the server has
	GPUs   []string
	Source Source // shows the GPUs
	// IsRunning reports whether a server's metric counts the requests that run.
	IsRunning func(metric string) bool
	// Hold is how long each number of requests is in flight. The first third is not measured: requests and sources settle.
	Hold time.Duration

	client *http.Client
}

const (
	answerTokens = 512 // of a request, so that a batch stays full
	maxBatch     = 4096
	maxReply     = 4 << 20
)

var batchFields = gpu.SetOf(gpu.SMActive, gpu.TensorActive, gpu.DRAMActive, gpu.PowerUsage)

// Batches keeps each of some numbers of requests in flight, and hands on what the source shows meanwhile.
func (s *Server) Batches(ctx context.Context, batches []int, take func(calibration.Batch) error) error {
	u, err := url.Parse(s.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%q is not the URL of a server, such as http://127.0.0.1:8000", s.URL)
	}
	if s.client == nil {
		s.client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		s.client.Transport = &http.Transport{MaxIdleConnsPerHost: maxBatch}
	}
	defer s.client.CloseIdleConnections()
	if s.Model == "" {
		if s.Model, err = s.firstModel(ctx); err != nil {
			return err
		}
	}
	for _, n := range batches {
		if n < 1 || n > maxBatch {
			return fmt.Errorf("%d requests: want 1 to %d", n, maxBatch)
		}
		b, err := s.hold(ctx, n)
		if err != nil {
			return fmt.Errorf("%d requests in flight: %w", n, err)
		}
		if err := take(b); err != nil {
			return err
		}
	}
	return nil
}

// firstModel asks the server for its models.
func (s *Server) firstModel(ctx context.Context) (string, error) {
	body, err := s.send(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return "", err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil || len(list.Data) == 0 {
		return "", fmt.Errorf("%s/v1/models lists no model: %s", s.URL, excerpt.Of(string(body), 200))
	}
	return list.Data[0].ID, nil
}

// hold keeps n requests in flight, and measures.
func (s *Server) hold(ctx context.Context, n int) (calibration.Batch, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			for ctx.Err() == nil {
				if err := s.request(ctx); err != nil {
					cancel(err) // the first one counts
				}
			}
		})
	}
	b, err := s.measure(ctx, n)
	cancel(nil)
	clients.Wait()
	return b, err
}

// request is one request for as many tokens as it takes.
func (s *Server) request(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{
		"model": s.Model, "prompt": "Count from one to a thousand in words:", "max_tokens": answerTokens, "ignore_eos": true,
	})
	if err != nil {
		return err
	}
	_, err = s.send(ctx, http.MethodPost, "/v1/completions", body)
	return err
}

// measure returns means over the rest of the hold. The batch is what the server says; where it does not, n.
func (s *Server) measure(ctx context.Context, n int) (calibration.Batch, error) {
	settle, end := time.NewTimer(s.Hold/3), time.NewTimer(s.Hold)
	defer settle.Stop()
	defer end.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	sums, settled := map[gpu.FieldID]*mean{}, false
	running := &mean{}
	for {
		select {
		case <-ctx.Done():
			return calibration.Batch{}, context.Cause(ctx)
		case <-settle.C:
			settled = true
		case <-end.C:
			active := sums[gpu.SMActive]
			if active == nil {
				return calibration.Batch{}, fmt.Errorf("%s has no SM activity of the GPUs", s.Source.Name())
			}
			batch := calibration.Batch{
				Batch: float64(n), SMActive: *active.value(), TensorActive: sums[gpu.TensorActive].value(),
				DRAMActive: sums[gpu.DRAMActive].value(), Watts: sums[gpu.PowerUsage].value(),
			}
			if v := running.value(); v != nil && *v > 0 {
				batch.Batch = *v
			}
			return batch, nil
		case <-tick.C:
			if !settled {
				continue
			}
			if err := s.sample(ctx, sums); err != nil {
				return calibration.Batch{}, err
			}
			if v, ok := s.running(ctx); ok {
				running.add(v)
			}
		}
	}
}

// mean is a mean of values; nil: there is none.
type mean struct{ sum, n float64 }

func (m *mean) add(v float64) { m.sum += v; m.n++ }

func (m *mean) value() *float64 {
	if m == nil || m.n == 0 {
		return nil
	}
	v := m.sum / m.n
	return &v
}

// sample adds what the source shows of the server's GPUs.
func (s *Server) sample(ctx context.Context, sums map[gpu.FieldID]*mean) error {
	values, err := s.Source.Read(ctx, func(f gpu.FieldID) bool { return batchFields.HasID(f) })
	if err != nil {
		return fmt.Errorf("%s: %w", s.Source.Name(), err)
	}
	seen := map[string]bool{}
	for key, v := range values {
		if len(s.GPUs) > 0 && !slices.Contains(s.GPUs, key.UUID) {
			continue
		}
		seen[key.UUID] = true
		if sums[key.Field] == nil {
			sums[key.Field] = &mean{}
		}
		sums[key.Field].add(v)
	}
	if len(seen) > 1 && len(s.GPUs) == 0 {
		return fmt.Errorf("%s shows %d GPUs: give the UUIDs of the server's with --gpu", s.Source.Name(), len(seen))
	}
	return nil
}

// running is the number of requests that run, as the server's page says.
func (s *Server) running(ctx context.Context) (sum float64, ok bool) {
	body, err := s.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return 0, false // the number of clients is good enough
	}
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, maxLine)
	var l promtext.Line
	for lines.Scan() {
		if finite(&l, lines.Bytes()) && s.IsRunning(string(l.Name)) {
			sum, ok = sum+l.Value, true
		}
	}
	return sum, ok
}

func (s *Server) send(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, excerpt.Of(string(reply), 200))
	}
	return reply, err
}
