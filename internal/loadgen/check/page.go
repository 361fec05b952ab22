// SPDX-License-Identifier: Apache-2.0

package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/promtext"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Page is the /metrics page of an agent, of dcgm-exporter, or of another exporter whose metrics have DCGM's names and the
// label UUID.
type Page struct {
	url    string
	client *http.Client
}

const (
	maxPage     = 16 << 20 // bytes of a page
	maxLine     = 64 << 10
	pageTimeout = 5 * time.Second
)

// NewPage returns the page at an address. It sends no request.
func NewPage(address string) (*Page, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("%q is not the address of a page, such as http://127.0.0.1:9400/metrics", address)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/metrics"
	}
	return &Page{url: u.String(), client: &http.Client{
		Timeout:       pageTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Name returns the address.
func (p *Page) Name() string { return p.url }

// Read returns the values on the page.
func (p *Page) Read(ctx context.Context, want func(gpu.FieldID) bool) (Values, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	body := &io.LimitedReader{R: resp.Body, N: maxPage + 1}
	values, err := parsePage(body, want)
	if err == nil && body.N <= 0 {
		err = fmt.Errorf("the page is longer than %d bytes", maxPage)
	}
	return values, err
}

// parsePage reads the wanted fields of a page in Prometheus's text format. Copies of a series for sharers count once.
func parsePage(r io.Reader, want func(gpu.FieldID) bool) (Values, error) {
	values := Values{}
	instances := map[string]string{} // GPU and instance → the UUID of the MIG instance
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	metric, ref, known := "", gpu.Ref{}, false // of the line before
	var l promtext.Line
	for lines.Scan() {
		if !finite(&l, lines.Bytes()) {
			continue
		}
		label := func(name string) string { return string(l.Get(name)) }
		if string(l.Name) == "gpupilot_mig_device_info" && len(instances) < MaxGPUs && len(l.Get("uuid")) <= maxUUID {
			instances[label("parent_uuid")+"/"+label("gpu_instance")] = label("uuid")
		}
		if string(l.Name) != metric {
			metric = string(l.Name)
			ref, known = names.Metric(metric)
			known = known && want(ref.Field)
		}
		uuid := uuidOf(label)
		if !known || uuid == "" || len(uuid) > maxUUID || len(values) >= maxKeys {
			continue
		}
		key := Key{uuid, ref.Field}
		if _, has := values[key]; !has {
			values[key] = l.Value * ref.Scale
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	for key, v := range values {
		if uuid := instances[key.UUID]; uuid != "" {
			values[Key{uuid, key.Field}] = v
		}
	}
	if len(values) == 0 {
		return values, errNoValues
	}
	return values, nil
}

var errNoValues = errors.New("the page has no value of the field with the label UUID")

// uuidOf returns the GPU of a series: its UUID, for a MIG instance followed by / and the number of the GPU instance.
func uuidOf(label func(name string) string) string {
	uuid := label("UUID")
	if uuid == "" {
		uuid = label("uuid")
	}
	if instance := label("GPU_I_ID"); uuid != "" && instance != "" {
		return uuid + "/" + instance
	}
	return uuid
}

// finite parses a sample line and reports whether its value is a number.
func finite(l *promtext.Line, text []byte) bool {
	return l.Parse(text) == nil && !math.IsNaN(l.Value) && !math.IsInf(l.Value, 0)
}
