#!/usr/bin/env bash
# Renames the words of the domain, in this directory and in README.md, and the files that have them in their names.
# Write yours on the right, and run this in the root of the repository. Then read what has changed, and delete this file.
set -euo pipefail
export BOOKING=reservation BOOKINGS=reservations
export COURSE=class COURSES=classes
export PLACE=spot PLACES=spots

words='
    s/bookings/$ENV{BOOKINGS}/g, s/Bookings/\u$ENV{BOOKINGS}/g, s/booking/$ENV{BOOKING}/g, s/Booking/\u$ENV{BOOKING}/g;
    s/courses/$ENV{COURSES}/g, s/Courses/\u$ENV{COURSES}/g, s/course/$ENV{COURSE}/g, s/Course/\u$ENV{COURSE}/g;
    s/\bplaces\b/$ENV{PLACES}/g, s/Places\b/\u$ENV{PLACES}/g, s/PLACES\b/\U$ENV{PLACES}/g, s/\bplace\b/$ENV{PLACE}/g'
directory=$(dirname "$0")
git ls-files "$directory" README.md ':!*.sh' | xargs perl -pi -e "$words"
git ls-files "$directory" | while read -r file; do
    to=$(dirname "$file")/$(basename "$file" | perl -pe "$words")
    [ "$to" = "$file" ] || git mv "$file" "$to"
done
gofmt -w "$directory"
