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
	"strconv"
	"strings"
	"time"

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
	for lines.Scan() {
		name, labels, value, ok := parseLine(lines.Text())
		if !ok {
			continue
		}
		if mig := labels["uuid"]; name == "gpupilot_mig_device_info" && len(instances) < MaxGPUs && len(mig) <= maxUUID {
			instances[labels["parent_uuid"]+"/"+labels["gpu_instance"]] = mig
		}
		if name != metric {
			metric = name
			ref, known = names.Metric(name)
			known = known && want(ref.Field)
		}
		uuid := UUIDOf(labels)
		if !known || uuid == "" || len(uuid) > maxUUID || len(values) >= maxKeys {
			continue
		}
		key := Key{uuid, ref.Field}
		if _, has := values[key]; !has {
			values[key] = value * ref.Scale
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

// UUIDOf returns the GPU of a series: its UUID, for a MIG instance followed by / and the number of the GPU instance.
func UUIDOf(labels map[string]string) string {
	uuid := labels["UUID"]
	if uuid == "" {
		uuid = labels["uuid"]
	}
	if instance := labels["GPU_I_ID"]; uuid != "" && instance != "" {
		return uuid + "/" + instance
	}
	return uuid
}

// parseLine parses name{label="value",…} value [timestamp].
func parseLine(line string) (name string, labels map[string]string, value float64, ok bool) {
	line = strings.TrimSpace(line)
	end := strings.IndexAny(line, "{ \t")
	if line == "" || line[0] == '#' || end <= 0 {
		return "", nil, 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		if labels, rest, ok = parseLabels(rest[1:]); !ok {
			return "", nil, 0, false
		}
	}
	words := strings.Fields(rest)
	if len(words) == 0 {
		return "", nil, 0, false
	}
	value, err := strconv.ParseFloat(words[0], 64)
	return name, labels, value, err == nil && !math.IsNaN(value) && !math.IsInf(value, 0)
}

// parseLabels parses labels up to the closing brace and returns what is behind it.
func parseLabels(text string) (labels map[string]string, rest string, ok bool) {
	labels = map[string]string{}
	for {
		text = strings.TrimLeft(text, " \t,")
		if strings.HasPrefix(text, "}") {
			return labels, text[1:], true
		}
		name, after, found := strings.Cut(text, "=")
		after = strings.TrimLeft(after, " \t")
		if !found || !strings.HasPrefix(after, `"`) {
			return nil, "", false
		}
		end := 1
		for end < len(after) && after[end] != '"' {
			if after[end] == '\\' {
				end++
			}
			end++
		}
		if end >= len(after) {
			return nil, "", false
		}
		labels[strings.TrimSpace(name)] = unescape.Replace(after[1:end])
		text = after[end+1:]
	}
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")
