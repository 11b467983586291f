package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/pgbench"
)

// placeClients is the number of clients that place orders over HTTP. Each sends its next request when it has the
// response to the one before, so this workload measures a rate and no latency.
const placeClients = 64

// runPlace places orders over HTTP in the process of the contender, which schedules each of them. Their deadlines are
// an hour away.
func (t *trial) runPlace(ctx context.Context) error {
	if err := t.vacuum(ctx); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: placeClients}, Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	var tokens []string
	for range placeClients {
		token, err := signUp(ctx, client, t.w.addr)
		if err != nil {
			return err
		}
		tokens = append(tokens, token)
	}
	placed := make([]int, placeClients)
	began := time.Now()
	var clients errgroup.Group
	for i, token := range tokens {
		clients.Go(func() (err error) {
			for n := i; time.Since(began) < t.PlaceFor && ctx.Err() == nil; n++ {
				switch err := placeOrder(ctx, client, t.w.addr, token, fmt.Sprintf(pgbench.ID, n%products+1)); {
				case errors.Is(err, errOverloaded): // for a moment, on a slow machine
					contender.Sleep(ctx, 10*time.Millisecond)
				case err != nil:
					return err
				default:
					placed[i]++
				}
			}
			return nil
		})
	}
	if err := clients.Wait(); err != nil {
		return err
	}
	seconds, total := time.Since(began).Seconds(), 0
	for _, n := range placed {
		total += n
	}
	if total == 0 {
		return errOverloaded
	}
	after, err := t.w.counts()
	if err != nil {
		return err
	}
	if after.Unscheduled > 0 {
		return fmt.Errorf("%d of %d placed orders were not scheduled", after.Unscheduled, total)
	}
	t.report(place, map[string]float64{"rate": float64(total) / seconds})
	return nil
}

// signUp returns the token of a new customer.
func signUp(ctx context.Context, client *http.Client, addr string) (token string, err error) {
	body, err := post(ctx, client, "http://"+addr+"/api/customers", "", "")
	if err != nil {
		return "", err
	}
	var answer struct{ Token string }
	if err := json.Unmarshal(body, &answer); err != nil {
		return "", err
	}
	if answer.Token == "" {
		return "", errors.New("the shop gave no token")
	}
	return answer.Token, nil
}

func placeOrder(ctx context.Context, client *http.Client, addr, token, product string) error {
	body := `{"items":[{"product_id":"` + product + `","quantity":1}]}`
	_, err := post(ctx, client, "http://"+addr+"/api/orders", token, body)
	return err
}

// errOverloaded is the error of a request that the shop rejects because it has too many.
var errOverloaded = errors.New("the shop is overloaded")

// post sends a request, and returns the body of a response with status 201.
func post(ctx context.Context, client *http.Client, url, token, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && bytes.Contains(answer, []byte("/problems/overloaded")) {
		return nil, errOverloaded
	}
	if err == nil && response.StatusCode != http.StatusCreated {
		err = fmt.Errorf("POST %s: status %d, want 201: %.300s", url, response.StatusCode, answer)
	}
	return answer, err
}
